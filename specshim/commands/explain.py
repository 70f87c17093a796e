"""``specshim explain ID``: symptom, cause, fix, and whether it applies here."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import textwrap
from collections.abc import Iterable

from specshim.commands.output import refuse
from specshim.patching.report import Row, installed_versions, rows

SEEN_ON_SERVER = "specshim doctor shows in which processes of a server it is applied."
SEEN_IN_TRAINER = "In a trainer, specshim.status() shows whether it is applied."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="as specshim list shows it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    found = {row.patch.id: row for row in rows(installed_versions())}
    if args.id not in found:
        near = _nearest(args.id, found)
        hint = f"did you mean {near}?" if near else "specshim list shows all."
        sentence = f"there is no patch {args.id!r}; {hint}"
        return refuse("explain", sentence, as_json=args.json)
    row = found[args.id]
    print(json.dumps(row.as_data(), indent=2) if args.json else _text(row))
    return 0


def _nearest(wanted: str, ids: Iterable[str]) -> str | None:
    """The id that was meant: one that holds the text, or is spelled much like it."""
    wanted = wanted.lower().replace("_", "-")
    known = list(ids)
    holding = [known_id for known_id in known if wanted and wanted in known_id]
    near = difflib.get_close_matches(wanted, known, n=1)
    return next(iter([*near, *holding]), None)


def _text(row: Row) -> str:
    patch = row.patch
    fix = (sys.modules[patch.targets[0].wrapper.__module__].__doc__ or "").strip()
    seen = SEEN_IN_TRAINER if patch.processes == ("trainer",) else SEEN_ON_SERVER
    lines = (
        ("Id", patch.id),
        ("Summary", patch.summary),
        ("Symptom and cause", patch.why),
        ("Fix", patch.targets[0].wrapper.__doc__ or fix),
        ("How to see it", f"{patch.see} {seen}".strip()),
        ("Affects", f"{patch.package} {patch.range}"),
        ("Here", f"{row.verdict}. {row.reason}"),
        ("Targets", ", ".join(" or ".join(t.places) for t in patch.targets)),
        ("Means", f"{patch.rung}. {patch.why_not_lower}".strip()),
        ("Processes", ", ".join(patch.processes)),
        ("Upstream", ", ".join(patch.upstream) or "none"),
        (
            "Can go when",
            patch.remove_when or f"never; it is specshim's own ({patch.kind})",
        ),
        ("Switch off", f"SPECSHIM_DISABLE={patch.id}"),
    )
    return "\n".join(
        f"{key}: {textwrap.shorten(' '.join(value.split()), 10_000)}"
        for key, value in lines
    )
