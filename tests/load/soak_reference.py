"""Prompts of random length, their states by transformers, and what may differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from specshim import _vllm_facts as facts


def make(
    model: str,
    path: str,
    dtype: str,
    device: str,
    prompts: int,
    longest: int,
    layer_ids: Sequence[int] | None = None,
) -> None:
    """Write them to ``path``, in a process of its own: memory of the GPU is free then.

    ``states`` [tokens, layers, hidden] are of ``layer_ids`` (default: the launcher's),
    in float32 for a float32 server, else in its dtype, which costs a third of the
    least that is allowed. ``limits`` and ``row_limits`` are relative errors of these
    layers, of all rows of a sample and of two of them.
    """
    import torch

    from specshim.reference import compute_reference
    from specshim.verification.tolerance import (
        FLOAT32_RIGHT,
        HALF_ROW_BOUND,
        NOISE_FACTOR,
        ROW_FACTOR,
    )

    source = random.Random(0)
    ids = [[source.randrange(3, 400) for _ in range(longest)] for _ in range(prompts)]
    exact = compute_reference(model, ids, "float32", device=device)
    last = len(exact[0].stream) - 1
    kept = sorted({*(layer_ids or facts.default_layer_ids(last)), last})
    states = [found.stream[kept].transpose(0, 1).contiguous() for found in exact]
    del exact
    limits = torch.full((len(kept),), FLOAT32_RIGHT)
    row_limits = ROW_FACTOR * limits
    if dtype != "float32":
        half = compute_reference(model, ids[:16], dtype, device=device)
        near = [found.stream[kept].transpose(0, 1) for found in half]
        off = [n - s for n, s in zip(near, states, strict=False)]
        pairs = list(zip(off, states, strict=False))
        apart = torch.stack([_size(o, (0, 2)) / _size(s, (0, 2)) for o, s in pairs])
        rows = torch.cat([_size(o, 2) / _size(s, 2) for o, s in pairs])
        floor = 2 * 2.0 ** (-8 if dtype == "bfloat16" else -11)
        limits = (NOISE_FACTOR * apart.amax(0)).clamp(floor, HALF_ROW_BOUND)
        row_limits = (NOISE_FACTOR * rows.amax(0)).clamp(2 * floor, HALF_ROW_BOUND)
        # Beginnings are shorter than what was measured, and one row may be far off.
        limits = torch.maximum(limits, row_limits)
        states = [state.to(getattr(torch, dtype)) for state in states]
    data = {"prompts": ids, "states": states, "limits": limits, "layer_ids": kept}
    torch.save({**data, "row_limits": row_limits}, path)


def _size(tensor: Any, dims: Any) -> Any:
    return tensor.norm(dim=dims)
