"""``specshim list``: every patch, hook and aid, its range, its verdict here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from specshim.patching.report import Row, installed_versions, rows

_COLUMNS = ("verdict", "id", "affects", "upstream", "can go when")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    found = rows(installed_versions())
    if args.json:
        print(json.dumps([row.as_data() for row in found], indent=2))
    else:
        print(_table(found))
    return 0


def _table(found: Sequence[Row]) -> str:
    cells = [_COLUMNS, *(_cells(row) for row in found)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    ]
    lines.append("")
    lines.append("specshim explain ID says what each one is for.")
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    patch = row.patch
    return (
        row.verdict,
        patch.id,
        f"{patch.package} {patch.range}",
        ", ".join(patch.upstream) or "-",
        patch.remove_when or f"- ({patch.kind})",
    )
