"""The table of tiny models: a row per architecture, as published configs are."""

from __future__ import annotations

from collections.abc import Mapping

from specshim.tiny_rows import dense, experts, further, multimodal, recurrent
from specshim.tiny_rows.base import (
    BOS,
    EOS,
    LAYERS,
    PAD,
    SLIDING_WINDOW,
    UNK,
    VOCAB_SIZE,
    WORDS,
    TinyModel,
)

__all__ = [
    "ARCHITECTURES",
    "BOS",
    "EOS",
    "LAYERS",
    "PAD",
    "SLIDING_WINDOW",
    "UNK",
    "VOCAB_SIZE",
    "WORDS",
    "TinyModel",
]

_ROWS = (
    *dense.ROWS,
    *experts.ROWS,
    *recurrent.ROWS,
    *multimodal.ROWS,
    *further.ROWS,
)

ARCHITECTURES: Mapping[str, TinyModel] = {row.name: row for row in _ROWS}
