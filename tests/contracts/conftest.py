"""Checks of contracts, run in the environments of releases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from bench import Bench

VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


class FaultShownError(Exception):
    """Upstream failed the check, in the way that the patch is there to mend."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a process comes together, after all else."""

    def group(item: pytest.Item) -> str:
        mark = item.get_closest_marker("bench")
        ours = item.path.parent == Path(__file__).parent
        return str(mark.args[0]) if ours and mark else ""

    items.sort(key=group)


@pytest.fixture(scope="session")
def benches() -> Iterator[dict[tuple[str, str], Bench]]:
    """The one bench that is in use; tests come sorted by bench."""
    kept: dict[tuple[str, str], Bench] = {}
    yield kept
    for bench in kept.values():
        bench.close()


@pytest.fixture
def check(environment: Callable, benches: dict) -> Callable[..., list[str]]:
    """Run ``checks/NAME.py`` in an environment; the ids of the patches in place.

    ``patched``: with all patches except those in ``without``; else without specshim.
    ``own``: in a process of its own.
    """

    def run(
        name: str,
        *,
        on: str,
        patched: bool,
        fault: str = "no fault to show",
        without: Sequence[str] = (),
        own: bool = False,
    ) -> list[str]:
        # On the tap route the request would leave the road that is under test.
        switches = {"SPECSHIM": "0"}
        if patched:
            switches = {
                "SPECSHIM_ROUTE": "cache",
                "SPECSHIM_DISABLE": ",".join(without),
            }
        python = environment(on)
        key = (on, json.dumps(switches))
        if own or key not in benches:
            bench = Bench(python.python, python.environment(VARIABLES, switches))
            if own:
                with bench:
                    return judged(name, on, fault, bench.run(name))
            for other in list(benches):
                benches.pop(other).close()
            benches[key] = bench
        return judged(name, on, fault, benches[key].run(name))

    return run


def judged(name: str, on: str, fault: str, answer: dict[str, Any]) -> list[str]:
    error: str = answer["error"]
    # An engine's other processes may have the last word.
    shown = [line for line in error.splitlines() if line.startswith(fault)]
    if shown:
        raise FaultShownError(shown[-1])
    if error:
        pytest.fail(f"{name} on {on}: {error[-3000:]}")
    applied: list[str] = answer["applied"]
    return applied
