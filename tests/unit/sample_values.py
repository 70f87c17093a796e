"""Samples as models make them, for the tests of the guard."""

from __future__ import annotations

import torch

IDS = (2, 14, 25, 28)


def sample(
    tokens: int = 48,
    layers: int = 4,
    hidden: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """States that grow from layer to layer, and token ids that differ."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(tokens, layers, hidden, generator=generator)
    return steps.cumsum(1).to(dtype), torch.arange(1000, 1000 + tokens)
