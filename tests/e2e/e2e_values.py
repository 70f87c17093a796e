"""Prompts, references and tolerances of the end-to-end tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAYER_IDS = (0, 2, 4, 8)  # of 8 layers


def random_prompts(
    count: int, *, seed: int = 0, low: int = 1, high: int = 180
) -> list[list[int]]:
    """Token ids of random length, never the special ones."""
    source = random.Random(seed)
    lengths = [source.randrange(low, high) for _ in range(count)]
    return [[source.randrange(3, 400) for _ in range(n)] for n in lengths]


def reference(
    model: Path,
    prompts: Sequence[Sequence[int]],
    layer_ids: Sequence[int] = LAYER_IDS,
) -> list[Any]:
    """States [tokens, layers, hidden] of each prompt by transformers in float32."""
    from specshim.reference import compute_reference

    found = compute_reference(str(model), prompts, "float32")
    return [states.stream[list(layer_ids)].transpose(0, 1) for states in found]


def assert_exact(actual: Any, expected: Any) -> None:
    """Two float32 implementations of the same layers agree, layer by layer."""
    assert actual.shape == expected.shape
    error = (actual.float() - expected).norm(dim=(0, 2)) / expected.norm(dim=(0, 2))
    assert float(error.max()) < 1e-5, error.tolist()
