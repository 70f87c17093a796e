"""The custom op that records one layer's residual stream; opaque to compilers."""

from __future__ import annotations

import torch

# The op mutates its buffers, so that neither Inductor nor dead-code elimination can
# drop it, and it is one node for Dynamo, so that it causes no graph break.
_SCHEMA = (
    "tap(Tensor(a!) rows, Tensor(b!) runs, Tensor stream, Tensor? residual, int slot)"
    " -> ()"
)


def _tap(
    rows: torch.Tensor,
    runs: torch.Tensor,
    stream: torch.Tensor,
    residual: torch.Tensor | None,
    slot: int,
) -> None:
    """Copy ``stream`` (+ ``residual``) into ``rows[:, slot]`` and count the execution.

    Args:
        rows: capture buffer [max_num_batched_tokens, slots, hidden].
        runs: int32 [slots], executions since the connector last set it to zero.
        stream: [tokens, hidden]; rows beyond the buffer's are padding and dropped.
        residual: [tokens, hidden] or None.
        slot: which of the requested layer ids this is.
    """
    tokens = min(stream.shape[0], rows.shape[0])
    target = rows[:tokens, slot]
    if residual is None:
        target.copy_(stream[:tokens])
    elif stream.dtype == residual.dtype == rows.dtype:
        torch.add(stream[:tokens], residual[:tokens], out=target)
    else:
        target.copy_(stream[:tokens] + residual[:tokens])
    runs[slot].add_(1)


def _register() -> torch.library.Library | None:
    """Define ``torch.ops.specshim.tap`` once in this process."""
    if hasattr(torch.ops.specshim, "tap"):
        return None
    library = torch.library.Library("specshim", "FRAGMENT")
    library.define(_SCHEMA)
    library.impl("tap", _tap, "CompositeExplicitAutograd")
    torch.library.register_fake("specshim::tap", lambda *_: None, lib=library)
    return library


# The registration lives as long as this object does.
_LIBRARY = _register()


def tap(
    rows: torch.Tensor,
    runs: torch.Tensor,
    stream: torch.Tensor,
    residual: torch.Tensor | None,
    slot: int,
) -> None:
    """Record one layer; see :func:`_tap` for shapes."""
    torch.ops.specshim.tap(rows, runs, stream, residual, slot)
