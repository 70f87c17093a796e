"""What a results file says of each goal, as text.

    python -m benchmarks.report benchmarks/results/h200.json

A line per goal and case: the figure, what was to be reached, and whether it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cells import DECODE, SHAPES, SLOW
from benchmarks.files import GOAL as FILES_GOAL
from benchmarks.startup import LIMIT_S
from benchmarks.summary import GOALS, summary

Data = Mapping[str, Sequence[Mapping[str, Any]]]
_DECODE_GOAL = 1.01  # of plain's time between two tokens
_OLDEST_S = 4.0  # max_backlog_seconds
_PINNED = 2 << 30  # bytes: max_backlog_bytes
_SPEED_OF_SINK = 0.9
_RSS_GAIN_MIB = 256


@dataclass(frozen=True)
class Finding:
    """One case of a goal."""

    goal: str
    case: str
    figure: str
    reached: bool


def findings(data: Data) -> list[Finding]:
    """All cases that were measured."""
    parts = (_speed, _decode, _capacity, _slow, _pinned, _startup, _files, _whole)
    return [one for part in parts for one in part(data)]


def _speed(data: Data) -> Iterator[Finding]:
    for line in summary(data):
        if line.what == DECODE or "tap" not in line.shares:
            continue
        least = GOALS.get(SHAPES[line.shape].hidden, 0.98)
        case = f"{line.release} {line.shape} {line.transport} {line.what}"
        share = line.shares["tap"]
        yield Finding("tap of plain", case, f"{100 * share:.1f} %", share >= least)
        if "stock" in line.values:
            of = line.values["tap"] / line.values["stock"]
            yield Finding("tap of stock", case, f"{100 * of:.1f} %", of >= 1)


def _decode(data: Data) -> Iterator[Finding]:
    for line in summary(data):
        if line.what == DECODE and "tap" in line.shares:
            share, case = line.shares["tap"], f"{line.release} {line.shape}"
            figure = f"{100 * share:.1f} % of plain's time a token"
            yield Finding("decoding", case, figure, share <= _DECODE_GOAL)


def _capacity(data: Data) -> Iterator[Finding]:
    """The KV cache with the tap has as many GiB less as the tap says it takes.

    vLLM's log gives two decimals, and its own profile varies by some hundredths.
    """
    for tap in data["engines"]:
        sized = "kv_gib" in tap and "kv_gib_given" not in tap
        if tap["mode"] != "tap" or not sized or "tap_gpu_gib" not in tap:
            continue
        same = ("release", "device", "shape", "transport", "share")
        for plain in data["engines"]:
            if plain["mode"] != "plain" or "kv_gib" not in plain:
                continue
            if any(plain.get(name) != tap.get(name) for name in same):
                continue
            less, stated = plain["kv_gib"] - tap["kv_gib"], tap["tap_gpu_gib"]
            blocks = f"{plain.get('blocks')} and {tap.get('blocks')} blocks"
            figure = f"{less:.2f} GiB less, {stated:.2f} stated ({blocks})"
            case = f"{tap['release']} {tap['shape']} {tap['transport']}"
            yield Finding("KV cache", case, figure, less <= stated + 0.05)
            graphs = (plain.get("graphs"), tap.get("graphs"))
            if any(graphs):
                figure = f"{graphs[0]} and {graphs[1]}"
                yield Finding("CUDA graphs", case, figure, graphs[0] == graphs[1])


def _slow(data: Data) -> Iterator[Finding]:
    for entry in data["measurements"]:
        if entry["what"] != SLOW:
            continue
        case = f"{entry['release']} {entry['shape']} {entry['transport']}"
        of = entry["bytes"] / entry["seconds"] / entry["sink_bytes"]
        figure = f"{100 * of:.0f} % of the sink's speed"
        yield Finding("slow sink", case, figure, of >= _SPEED_OF_SINK)
        gain = entry["rss_gain_mib"]
        figure = f"{gain} MiB gained in the second half"
        yield Finding("slow sink", case, figure, gain <= _RSS_GAIN_MIB)
        oldest = entry["worker"].get("backlog_seconds", 0.0)
        figure = f"oldest rows {oldest:.1f} s"
        yield Finding("slow sink", case, figure, oldest <= _OLDEST_S + 1)


def _pinned(data: Data) -> Iterator[Finding]:
    most: dict[str, float] = {}
    for entry in data["measurements"]:
        if "pinned_reserved" in entry.get("worker", {}):
            case = f"{entry['release']} {entry['shape']}"
            most[case] = max(most.get(case, 0.0), entry["worker"]["pinned_reserved"])
    for case, size in most.items():
        figure = f"{size / (1 << 30):.2f} GiB"
        yield Finding("pinned memory", case, figure, size <= _PINNED)


def _startup(data: Data) -> Iterator[Finding]:
    taken: dict[str, list[float]] = {}
    for entry in data["startup"]:
        taken.setdefault(entry["release"], []).append(entry["seconds"])
    for release, seconds in taken.items():
        middle = median(seconds)
        figure = f"{1000 * middle:.0f} ms, at most {1000 * max(seconds):.0f}"
        yield Finding("plugin", release, figure, middle < LIMIT_S)


def _files(data: Data) -> Iterator[Finding]:
    pairs: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
    for entry in data["files"]:
        case = pairs.setdefault((entry["storage"], entry["block_bytes"]), {})
        case.setdefault(entry["repeat"], {})[entry["how"]] = entry["bytes_per_second"]
    for (storage, size), rounds in pairs.items():
        both = [r for r in rounds.values() if len(r) == 2]
        if both:
            of = median(r["sink"] / r["plain"] for r in both)
            speed = median(r["sink"] for r in both) / 1e9
            figure = f"{100 * of:.0f} % of a plain writer ({speed:.2f} GB/s)"
            case_name = f"{storage}, blocks of {size >> 20} MiB"
            yield Finding("file writing", case_name, figure, of >= FILES_GOAL)


def _whole(data: Data) -> Iterator[Finding]:
    """Every file of every measurement of the tap is there and right."""
    taps = [e for e in data["measurements"] if e["mode"] == "tap"]
    files = sum(entry.get("files", 0) for entry in taps)
    wrong = [entry["problems"][0] for entry in taps if entry["problems"]]
    compared = sum(len(entry.get("compared", ())) for entry in taps)
    figure = f"{files} whole files, {compared} compared with the reference"
    if wrong:
        figure += f"; {len(wrong)} measurements failed, such as: {wrong[0]}"
    yield Finding("files", "tap", figure, not wrong)


def render(found: Sequence[Finding]) -> str:
    return "\n".join(
        f"{'reached' if one.reached else 'MISSED':8}{one.goal:14} {one.case}: "
        f"{one.figure}"
        for one in found
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    found = findings(json.loads(parser.parse_args(argv).results.read_text()))
    print(render(found))
    return 0 if all(one.reached for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
