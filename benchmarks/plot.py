"""Plots of a results file: tokens per second, share of plain, host memory over time.

    python -m benchmarks.plot benchmarks/results/h200.json [-o h200.png]

Needs matplotlib (``pip install specshim[bench]``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import DECODE, MODES
from benchmarks.summary import Line, summary

_COLOURS = {
    "plain": "#888888",
    "tap": "#1b7837",
    "stock": "#b2182b",
    "cache": "#2166ac",
}


def plot(data: Mapping[str, Sequence[Mapping[str, Any]]], target: Path) -> None:
    """Write ``target``, a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [line for line in summary(data) if line.what != DECODE]
    wide = max(8.0, 0.8 * len(lines))
    figure, (speed, share, host) = pyplot.subplots(3, 1, figsize=(wide, 13))
    _bars(speed, lines, lambda line, mode: line.values.get(mode))
    speed.set_ylabel("prompt tokens per second")
    speed.legend()
    _bars(
        share,
        lines,
        lambda line, mode: 100 * line.shares[mode] if mode in line.shares else None,
    )
    share.set_ylabel("% of plain serving")
    share.axhline(100, color="#444444", linewidth=0.8)
    _memory(host, data)
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def _bars(axes: Any, lines: Sequence[Line], height: Any) -> None:
    modes = [mode for mode in MODES if any(mode in line.values for line in lines)]
    width = 0.8 / max(1, len(modes))
    for number, mode in enumerate(modes):
        at = [i + (number - (len(modes) - 1) / 2) * width for i in range(len(lines))]
        heights = [height(line, mode) for line in lines]
        shown = [h if h is not None else 0 for h in heights]
        axes.bar(at, shown, width, color=_COLOURS[mode], label=mode)
        for x, line, h in zip(at, lines, heights, strict=True):
            if h is None and mode in line.unable:
                axes.text(
                    x,
                    0,
                    "cannot run",
                    rotation=90,
                    ha="center",
                    va="bottom",
                    fontsize=7,
                )
    names = [f"{x.shape}\n{x.what} {x.transport}\n{x.release}" for x in lines]
    axes.set_xticks(range(len(lines)), names, fontsize=7)


def _memory(axes: Any, data: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """All measurements of a mode, one after another; the pauses between are cut."""
    for mode in MODES:
        seconds: list[float] = []
        gib: list[float] = []
        for entry in data["measurements"]:
            if entry["mode"] != mode or not entry.get("memory", {}).get("seconds"):
                continue
            start = (seconds[-1] + 0.25) if seconds else 0.0
            its = entry["memory"]
            seconds += [start + s - its["seconds"][0] for s in its["seconds"]]
            gib += [value / 1024 for value in its["rss_mib"]]
        if seconds:
            axes.plot(seconds, gib, color=_COLOURS[mode], label=mode)
    axes.set_xlabel("seconds of measurements")
    axes.set_ylabel("GiB resident, all processes of the server")
    axes.margins(y=0.1)
    axes.set_ylim(bottom=0)
    axes.legend()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="default: beside it")
    args = parser.parse_args(argv)
    target = args.output or args.results.with_suffix(".png")
    plot(json.loads(args.results.read_text()), target)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
