"""What became of the samples of one fault, and the table of all faults."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

SURVIVED, TOLD, LOST, WRONG = "survived", "told", "lost", "wrong"


@dataclass(frozen=True)
class Tally:
    """Counts of samples; one line of the table.

    ``told`` are those that failed or were aborted and whose client knows: by a reason
    in the response or in the lock file, by a closed connection, or by no file where the
    fault took the lock file away. ``lost`` are the others without a file, or
    with a wait that does not end. ``orphans`` are whole, right files whose clients had
    gone when the answer was on its way to them.
    """

    fault: str
    injected: int
    survived: int
    told: int
    lost: int
    wrong: int
    orphans: int = 0
    note: str = ""


def count(fault: str, outcomes: Iterable[str], note: str = "", **more: int) -> Tally:
    """The tally of the samples' outcomes; ``injected`` is their number if not given."""
    found = Counter(outcomes)
    injected = more.pop("injected", found.total())
    return Tally(
        fault, injected, found[SURVIVED], found[TOLD], found[LOST], found[WRONG],
        note=note, **more,
    )  # fmt: skip


def table(tallies: Iterable[Tally]) -> list[str]:
    """Right-aligned numbers under their names, one line per fault."""
    names = [field.name for field in dataclasses.fields(Tally)]
    rows = [names, *([str(v) for v in dataclasses.astuple(t)] for t in tallies)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        first, *numbers = (cell.rjust(width) for cell, width in cells)
        numbers[-1] = row[-1]
        lines.append("  ".join([row[0].ljust(len(first)), *numbers]).rstrip())
    return lines


class Report:
    """A pytest plugin: the table at the end, and ``faults.json`` in --basetemp."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faults.json"
        self._tallies: list[Tally] = []

    def add(self, tally: Tally) -> Tally:
        """One more line; afterwards assert that nothing was lost and nothing wrong."""
        self._tallies.append(tally)
        lines = [dataclasses.asdict(one) for one in self._tallies]
        self._file.write_text(json.dumps(lines, indent=1))
        assert (tally.lost, tally.wrong) == (0, 0), tally
        return tally

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Called by pytest."""
        terminalreporter.section("injected faults")
        for line in table(self._tallies):
            terminalreporter.write_line(line)
