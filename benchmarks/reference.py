"""States that the samples are compared with, from a pass without specshim.

``transformers``: of a model with weights on disk, in float32. ``hooks``: vLLM itself,
eager, one prompt at a time, forward hooks at the layers; the only way for dummy weights
of tens of gigabytes, which exist nowhere but in the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.engines import offline
from benchmarks.samples import digest
from benchmarks.setup import Setup

OF_NEAREST = 0.67
WORST_ROW = 0.7  # relative distance; rows of two tokens are about 1.4 apart


def make(setup: Setup, how: str, prompts: Sequence[list[int]]) -> dict[int, Any]:
    """By digest of the prompt: [tokens, layers, hidden]."""
    import torch

    keep = setup.work / f"reference-{setup.shape.name}-{how}.pt"
    if keep.exists():
        found: dict[int, Any] = torch.load(keep, weights_only=True)
        if all(digest(prompt) in found for prompt in prompts):
            return found
    if how == "transformers":
        rows = _of_transformers(setup, prompts)
    else:
        rows = _of_hooks(setup, prompts)
    found = {digest(p): states for p, states in zip(prompts, rows, strict=True)}
    torch.save(found, keep)
    return found


def _of_transformers(setup: Setup, prompts: Sequence[list[int]]) -> list[Any]:
    from specshim.reference import compute_reference

    ids = list(setup.shape.layer_ids)
    every = compute_reference(str(setup.model), prompts, "float32")
    return [states.stream[ids].transpose(0, 1) for states in every]


def _of_hooks(setup: Setup, prompts: Sequence[list[int]]) -> list[Any]:
    import torch

    eager = replace(setup, mode="plain", eager=True)
    out = setup.work / "states.pt"
    shape = setup.shape
    with offline(eager, VLLM_ENABLE_V1_MULTIPROCESSING="0") as engine:
        engine.ask(
            "states",
            prompts=prompts,
            layer_ids=list(shape.layer_ids),
            layers=shape.layers,
            out=str(out),
        )
    rows: list[Any] = torch.load(out, weights_only=True)
    out.unlink()
    return rows


def compare(path: Path, known: Mapping[int, Any]) -> dict[str, Any]:
    """How far a sample's rows are from the reference, and whether that is rounding.

    Each layer must be clearly nearer to its own reference than to that of any other
    recorded layer, and no row as far from its own as rows of other tokens are.
    """
    from safetensors import safe_open

    with safe_open(str(path), "pt") as file:
        given = file.get_tensor("token_ids").tolist()
        states = file.get_tensor("hidden_states").float()
    expected = known[digest(given)].float()
    layers = range(states.shape[1])
    apart = [[_apart(states[:, i], expected[:, j]) for j in layers] for i in layers]
    own = [apart[i][i] for i in layers]
    nearest = [min(v for j, v in enumerate(apart[i]) if j != i) for i in layers]
    worst = float(((states - expected).norm(dim=2) / expected.norm(dim=2)).max())
    told = all(a < OF_NEAREST * b for a, b in zip(own, nearest, strict=True))
    return {
        "tokens": len(given),
        "distance": [round(value, 6) for value in own],
        "nearest_other_layer": [round(value, 4) for value in nearest],
        "worst_row": round(worst, 6),
        "right": told and worst < WORST_ROW,
    }


def _apart(states: Any, expected: Any) -> float:
    return float((states - expected).norm() / expected.norm())
