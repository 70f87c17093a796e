"""Which rows of the capture buffer belong to which request, by the runner's batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_BATCH = "_specshim_batch"


class RowsUnknown(RuntimeError):
    """The runner's batch and the scheduler's step disagree; nothing may be recorded."""


def watch_batches(runner: Any) -> None:
    """Make model runner V2 remember the batch it prepares; V1 keeps it anyway.

    V2 (the class in ``vllm.v1.worker.gpu``) returns its batch from ``prepare_inputs``
    and keeps no reference.
    """
    if not hasattr(runner, "prepare_inputs"):
        return
    original: Callable[..., Any] = runner.prepare_inputs

    def prepare_inputs(*args: Any, **kwargs: Any) -> Any:
        batch = original(*args, **kwargs)
        setattr(runner, _BATCH, batch)
        return batch

    runner.prepare_inputs = prepare_inputs


def _batch(runner: Any) -> tuple[list[str], Any]:
    """Request ids in batch order, and the runner's query_start_loc on the host."""
    batch = getattr(runner, _BATCH, None)
    if batch is not None:
        return list(batch.req_ids), batch.query_start_loc_np
    starts = getattr(runner, "query_start_loc", None)
    return list(runner.input_batch.req_ids), getattr(starts, "np", None)


def batch_rows(runner: Any, counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield (request id, first row) for every request of this step.

    Args:
        runner: the model runner, V1 or V2, after its forward.
        counts: the scheduler's number of tokens per request of this step.

    Raises:
        RowsUnknown: the runner's batch is not this step's.
    """
    order, starts = _batch(runner)
    present = [request_id for request_id in order if request_id in counts]
    if len(present) != len(counts):
        raise RowsUnknown(
            f"the step schedules {len(counts)} requests, of which the runner's batch "
            f"holds {len(present)}"
        )
    row = 0
    for index, request_id in enumerate(present):
        if starts is not None and int(starts[index]) != row:
            raise RowsUnknown(
                f"request {request_id} begins at row {int(starts[index])} by the "
                f"runner, at row {row} by the scheduler"
            )
        yield request_id, row
        row += counts[request_id]
