"""The table of the README, made from the results files.

    python -m benchmarks.table                # print it
    python -m benchmarks.table --write        # put it into README.md

It stands between two marks there; a test holds it against the results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import DECODE, MIXED
from benchmarks.summary import Line, summary

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
_HEAD = "| model | how | prompts | vLLM | plain | tap | stock | tap of plain |"


def load(folder: Path = RESULTS) -> dict[str, list[dict[str, Any]]]:
    """All results files of GPUs, as one."""
    found: dict[str, list[dict[str, Any]]] = {"runs": []}
    for path in sorted(folder.glob("*.json")):
        for section, entries in json.loads(path.read_text()).items():
            kept = [e for e in entries if e.get("device", "cuda") == "cuda"]
            found.setdefault(section, []).extend(kept)
    return found


def render(data: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Markdown; "" where nothing was measured."""
    lines = summary(data) if data.get("measurements") else []
    if not lines:
        return ""
    rows = [_HEAD, "|" + "---|" * (_HEAD.count("|") - 1)]
    rows += [_row(line) for line in lines]
    return "\n".join([*rows, "", _where(data)])


def _row(line: Line) -> str:
    what = {MIXED: "mixed", DECODE: "decoding"}.get(line.what, f"{line.what} tokens")
    cells = [line.shape, line.transport, what, line.release]
    cells += [_value(line, mode) for mode in ("plain", "tap", "stock")]
    cells.append(_percent(line, "tap"))
    return "| " + " | ".join(cells) + " |"


def _value(line: Line, mode: str) -> str:
    if mode not in line.values:
        return "cannot run" if mode in line.unable else ""
    number = line.values[mode]
    if line.what == DECODE:
        return f"{1000 * number:.3f} ms/token"
    return f"{number:,.0f} tok/s"


def _percent(line: Line, mode: str) -> str:
    return f"{100 * line.shares[mode]:.1f} %" if mode in line.shares else ""


def _where(data: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    used = {entry["run"] for entry in data["measurements"]}
    runs = [run for run in data["runs"] if run["id"] in used]
    gpus = sorted({gpu for run in runs for gpu in run["gpus"]})
    dates = sorted(run["date"][:10] for run in runs)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    rounds = min(min(line.rounds.values(), default=0) for line in summary(data))
    return (
        f"{', '.join(gpus)}; {when}; medians of {rounds} or more rounds in which the "
        "modes took turns; all files complete and checked."
    )


def placed(page: str, table: str) -> str:
    """The page with the table between the marks; unchanged where it has none."""
    if BEGIN not in page:
        return page
    inside = f"{BEGIN}\n{table}\n{END}" if table else f"{BEGIN}\n{END}"
    whole = re.escape(BEGIN) + r".*?" + re.escape(END)
    return re.sub(whole, lambda _: inside, page, flags=re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder")
    parser.add_argument("--write", action="store_true", help="into README.md")
    args = parser.parse_args(argv)
    table = render(load(args.results))
    if args.write:
        readme = ROOT / "README.md"
        readme.write_text(placed(readme.read_text(), table))
    else:
        print(table or "There are no results of a GPU yet.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
