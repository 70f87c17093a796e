"""When a run stops of which the guard refuses the samples."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from specshim import _refusals, guard


@dataclass(frozen=True)
class Unavailable:
    reason: str = ""
    counts_as_failure: bool = False
    consecutive_failures: int = 0
    fatal: bool = False


REFUSED = guard.BadSample("Hidden states refused: all rows are zero.")


def test_a_run_without_a_good_sample_stops_after_five() -> None:
    dataset = SimpleNamespace()
    found = [
        _refusals.count_refused(dataset, Unavailable("why"), REFUSED) for _ in range(5)
    ]
    assert [sample.fatal for sample in found] == [False] * 4 + [True]
    assert found[-1] == Unavailable("why", True, 5, True)


def test_once_there_was_a_good_one_the_trainers_own_limit_counts() -> None:
    recovery = SimpleNamespace(max_consecutive_failures=7)
    dataset = SimpleNamespace(generation_recovery=recovery)

    def fatal(count: int) -> list[bool]:
        bad = Unavailable()
        return [
            _refusals.count_refused(dataset, bad, REFUSED).fatal for _ in range(count)
        ]

    assert not any(fatal(4))
    _refusals.accept(dataset)
    assert fatal(7) == [False] * 6 + [True]


def test_before_0_8_the_dataset_itself_ends_the_run() -> None:
    dataset = SimpleNamespace()
    for _ in range(4):
        assert _refusals.count_refused(dataset, None, REFUSED) is None
    with pytest.raises(guard.BadSample, match=r"5 samples in a row .* rows are zero"):
        _refusals.count_refused(dataset, None, REFUSED)
