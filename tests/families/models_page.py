"""Writes the tables of docs/models.md and README.md from results and registry.

python tests/families/models_page.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from family_runs import BY_NAME, COMPILED, FEW

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGES = {
    ROOT / "docs" / "models.md": ("results", "releases", "failures", "untried"),
    ROOT / "README.md": ("releases",),
}
Result = Mapping[str, Any]


def load() -> tuple[list[Result], Mapping[str, Any]]:
    """What was run, and what vLLM lists."""
    results = json.loads((HERE / "results.json").read_text())
    return results, json.loads((HERE / "registry.json").read_text())


def table(results: Sequence[Result]) -> str:
    """One line a cell that ran, by release, the newest first."""
    lines = []
    releases = sorted({r["release"] for r in results}, key=_number, reverse=True)
    for release in releases:
        cells = [r for r in results if r["release"] == release]
        right = sum(r["result"] == "right" for r in cells)
        lines += [
            f"### vLLM {release}",
            "",
            f"{len(cells)} runs, {right} right.",
            "",
            "| model | architecture | how | dtype | result | worst error | date |",
            "|---|---|---|---|---|---|---|",
        ]
        for r in sorted(cells, key=lambda r: (r["result"] != "right", r["model"])):
            how = r["mode"] + (f" ({r['note']})" if "note" in r else "")
            lines.append(
                f"| {r['model']} | `{r['architecture']}` | {how} | {r['dtype']} "
                f"| {r['result']} | {_error(r)} | {r['date']} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()


def _error(r: Result) -> str:
    """The worst prompt in the worst layer, and what half precision alone costs."""
    if "worst" not in r:
        return ""
    if "rounding" not in r:
        return f"{r['worst']:.1e}"
    return f"{r['worst']:.1e}; together {r['together']:.1e}, alone {r['rounding']:.1e}"


def by_release(results: Sequence[Result]) -> str:
    """The families that are run on every release: one line a release."""
    cells = {(r["release"], r["model"], r["mode"]): r for r in results}
    runs = [BY_NAME[name] for name in FEW]
    heads = [run.model + (", compiled" if run.mode == COMPILED else "") for run in runs]
    lines = [f"| vLLM | {' | '.join(heads)} |", "|---" * (len(runs) + 1) + "|"]
    for release in sorted({r["release"] for r in results}, key=_number):
        row = [cells.get((release, run.model, run.mode)) for run in runs]
        lines.append(f"| {release} | {' | '.join(map(_cell, row))} |")
    return "\n".join(lines)


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{result['worst']:.1e}" if "worst" in result else str(result["result"])


def failures(results: Sequence[Result]) -> str:
    """What was said where a cell is not right, and what vLLM does without specshim."""
    lines = []
    for r in sorted(results, key=lambda r: (r["result"], r["model"])):
        if r["result"] != "right":
            name = f"{r['model']} ({r['mode']}, vLLM {r['release']})"
            lines.append(f"- **{name}**: {r['result']}. {_code(r.get('error', ''))}")
            if "plain" in r:
                lines.append(f"  {_code(r['plain'])}")
    return "\n".join(lines) or "None."


def untried(results: Sequence[Result], registry: Mapping[str, Any]) -> str:
    """Implementations in vLLM's registry of which no architecture was run."""
    lines = []
    here = [r for r in results if r["release"] == registry["release"]]
    ran = {r["architecture"] for r in here}
    titles = {
        "text": "Decoders of text",
        "multimodal": "With images, sound or video",
        "transformers backend": "On the transformers backend",
    }
    every = {n: place for kind in titles for n, place in registry[kind].items()}
    shown = {r["architecture"] for r in here if r["result"] in ("right", "near")}
    done = {every[name] for name in shown if name in every}
    for kind, title in titles.items():
        names = registry[kind]
        alone = kind == "transformers backend"  # one implementation, many models
        left = [
            name
            for name, place in names.items()
            if name not in ran and (alone or place not in done)
        ]
        lines += [
            f"**{title}**: {len(names) - len(left)} of {len(names)} architectures were "
            "run, or share their class with one that is right; untried are "
            + (", ".join(f"`{name}`" for name in left) or "none")
            + ".",
            "",
        ]
    return "\n".join(lines).rstrip()


def render(path: Path) -> str:
    """The page at ``path``, its generated parts as results and registry have them."""
    page = path.read_text()
    results, registry = load()
    parts = {
        "results": table([r for r in results if r["release"] == registry["release"]]),
        "releases": by_release(results),
        "failures": failures(results),
        "untried": untried(results, registry),
    }
    for name in PAGES[path]:
        pattern = rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)"
        block = f"\\g<1>\n{_escaped(parts[name])}\n\\g<2>"
        page, count = re.subn(pattern, block, page, flags=re.DOTALL)
        assert count == 1, f"{path} has no place for {name}"
    return page


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:3])


def _code(text: str) -> str:
    return re.sub(r"<([\w.]+)", r"`<`\1", text.strip())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


def write_all() -> None:
    """Bring the pages up to date."""
    for path in PAGES:
        path.write_text(render(path))


if __name__ == "__main__":
    write_all()
