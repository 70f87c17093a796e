"""Counts the samples that are refused in a row, so that a run of nothing else stops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specshim.guard import BadSample

_COUNT = "specshim_count"  # an attribute of datasets, in each worker
_MOST_REFUSED = 20  # in a row; speculators' own default of 0.8 and newer
_AT_THE_START = 5


@dataclass
class _Count:
    refused: int = 0  # in a row
    any_good: bool = False


def _count(dataset: Any) -> _Count:
    found: _Count = vars(dataset).setdefault(_COUNT, _Count())
    return found


def accept(dataset: Any) -> None:
    """A sample of ``dataset`` was good: the count of refused ones begins anew."""
    count = _count(dataset)
    count.refused, count.any_good = 0, True


def count_refused(dataset: Any, unavailable: Any, error: BadSample) -> Any:
    """Count a refused sample, so that a run that gets no others stops.

    It does so after as many in a row as ``--max-consecutive-generation-failures`` says,
    and where there was no good one yet after five, since the fault is in all of them.

    Args:
        unavailable: what the dataset returns for it; None before 0.8.

    Returns:
        the same, fatal for the trainer of 0.8 and newer where the run has to stop.

    Raises:
        BadSample: before 0.8, where nobody counts.
    """
    count = _count(dataset)
    count.refused += 1
    recovery = getattr(dataset, "generation_recovery", None)
    limit = getattr(recovery, "max_consecutive_failures", _MOST_REFUSED)
    if not count.any_good:
        limit = min(limit, _AT_THE_START)
    fatal = count.refused >= limit
    if unavailable is not None:
        return replace(
            unavailable,
            counts_as_failure=True,
            consecutive_failures=count.refused,
            fatal=fatal or unavailable.fatal,
        )
    if fatal:
        raise BadSample(
            f"Training stops, since {count.refused} samples in a row were refused; the "
            f"last: {error}"
        )
    return None
