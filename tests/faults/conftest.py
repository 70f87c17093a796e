"""The tally of injected faults: printed at the end, and faults.json in --basetemp."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "e2e"))  # its servers and values

from tally import Tally, table

TALLIES = pytest.StashKey[list[Tally]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLIES] = []


@pytest.fixture
def record(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Tally], Tally]:
    """Add a line to the table, then assert that nothing was lost and nothing wrong."""
    tallies = request.config.stash[TALLIES]

    def add(tally: Tally) -> Tally:
        tallies.append(tally)
        text = json.dumps([dataclasses.asdict(one) for one in tallies], indent=1)
        (tmp_path_factory.getbasetemp() / "faults.json").write_text(text)
        tally.assert_nothing_lost()
        return tally

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tallies = terminalreporter.config.stash.get(TALLIES, [])
    if tallies:
        terminalreporter.section("injected faults")
        for line in table(tallies):
            terminalreporter.write_line(line)
