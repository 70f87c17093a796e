"""Files as the sink writes them, and entries as a run adds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specshim.tap.sink import FileSink

LAYERS, HIDDEN = 2, 8


def write_sample(path: Path, token_ids: list[int], rows: bytes = b"") -> None:
    """By the sink itself; bfloat16 1.0 in every place if no bytes are given."""
    sink = FileSink(LAYERS, HIDDEN, "bfloat16", {})
    writer = sink.open(str(path), announced=True, rows=len(token_ids))
    whole = rows or b"\x80\x3f" * (len(token_ids) * LAYERS * HIDDEN)
    writer.write(0, memoryview(whole))
    writer.commit(len(token_ids), token_ids)


def measured(mode: str, repeat: int, speed: float, **more: Any) -> dict[str, Any]:
    return {
        "run": "1",
        "release": "0.24.0",
        "device": "cuda",
        "shape": "llama-8b",
        "transport": "offline",
        "what": "1024",
        "mode": mode,
        "repeat": repeat,
        "tokens_per_second": speed,
        "problems": [],
        **more,
    }
