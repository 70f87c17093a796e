"""What the results say: medians of rounds, and each mode's share of plain serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.cells import DECODE, MIXED, MODES, SLOW, TRANSPORTS

Entry = Mapping[str, Any]
GOALS = {4096: 0.99, 5120: 0.98}  # share of plain serving, by hidden size
_CELL = ("release", "device", "shape", "transport", "what")


@dataclass(frozen=True)
class Line:
    """A cell: for each mode tokens per second (seconds per token in decoding), its
    share of plain in the same rounds, its number of rounds, and why it has none."""

    release: str
    device: str
    shape: str
    transport: str
    what: str
    values: Mapping[str, float]
    shares: Mapping[str, float]
    rounds: Mapping[str, int]
    unable: Mapping[str, str]
    problems: int


def summary(data: Mapping[str, Sequence[Entry]]) -> list[Line]:
    """A line per cell that was measured, in the order of a reader."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in data["measurements"]:
        if entry["what"] != SLOW:
            found.setdefault(tuple(entry[name] for name in _CELL), []).append(entry)
    lines = [_line(key, entries, data["engines"]) for key, entries in found.items()]
    return sorted(lines, key=_order)


def _order(line: Line) -> tuple[Any, ...]:
    last = {MIXED: 1 << 30, DECODE: 1 << 31}
    size = last.get(line.what) or int(line.what)
    release = [int(part) for part in line.release.split(".")[:3] if part.isdigit()]
    where = TRANSPORTS.index(line.transport)
    return line.device, line.shape, where, size, release


def value(entry: Entry) -> float:
    """Tokens per second, or seconds per token."""
    key = "token_seconds" if entry["what"] == DECODE else "tokens_per_second"
    return float(entry[key])


def _line(
    key: tuple[str, ...], entries: Sequence[Entry], engines: Sequence[Entry]
) -> Line:
    right = [entry for entry in entries if not entry["problems"]]
    modes = [mode for mode in MODES if any(e["mode"] == mode for e in right)]
    its = {mode: [e for e in right if e["mode"] == mode] for mode in modes}
    plain = {_round(entry): value(entry) for entry in its.get("plain", [])}
    shares = {}
    for mode in modes:
        of = [value(e) / plain[_round(e)] for e in its[mode] if _round(e) in plain]
        if of:
            shares[mode] = median(of)
    unable = {
        e["mode"]: e["error"]
        for e in engines
        if "error" in e and all(e[n] == v for n, v in zip(_CELL[:4], key, strict=False))
    }
    release, device, shape, transport, what = key
    return Line(
        release=release,
        device=device,
        shape=shape,
        transport=transport,
        what=what,
        values={mode: median(map(value, its[mode])) for mode in modes},
        shares=shares,
        rounds={mode: len(its[mode]) for mode in modes},
        unable=unable,
        problems=len(entries) - len(right),
    )


def _round(entry: Entry) -> tuple[Any, ...]:
    """Only what was measured in turn, by the same servers, is compared."""
    return entry["run"], entry["repeat"]
