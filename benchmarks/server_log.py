"""What vLLM's log says of its memory, its graphs and its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LOGGED = {
    "kv_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "kv_gib": re.compile(r"Available KV cache memory: ([\d.]+) GiB"),
    "model_gib": re.compile(r"Model loading took ([\d.]+) GiB"),
    "graphs_gib": re.compile(r"Graph capturing finished in .* took ([\d.]+) GiB"),
    "graph_seconds": re.compile(r"Graph capturing finished in ([\d.]+) sec"),
    "compile_seconds": re.compile(r"torch.compile takes ([\d.]+) s in total"),
}


_CAPTURED = re.compile(r"Capturing CUDA graphs[^:]*?\(([^)]*)\): +100%[^/]*?(\d+)/")


def of_log(log: Path) -> dict[str, Any]:
    """What vLLM says of its memory, its graphs and its start, where it does."""
    text = log.read_text(errors="replace")
    found = {name: what.search(text) for name, what in _LOGGED.items()}
    said: dict[str, Any] = {
        name: float(match[1].replace(",", "")) for name, match in found.items() if match
    }
    graphs = {name: int(count) for name, count in _CAPTURED.findall(text)}
    return {**said, "graphs": graphs} if graphs else said


_ERROR = re.compile(r"\b(\w+(?:Error|Exception|Refused|Exit)): (.+)$")
_ECHOES = ("Engine core initialization failed", "Failed core proc")


def said_last(log: Path) -> str:
    """The error that a server ended with, as one line."""
    text = log.read_text(errors="replace") if log.exists() else ""
    found = [match for line in text.splitlines() if (match := _ERROR.search(line))]
    own = [m for m in found if not any(echo in m[2] for echo in _ECHOES)]
    if not own:
        return "The server did not come up; its log says nothing of an error."
    return f"{own[-1][1]}: {own[-1][2]}"[:600]
