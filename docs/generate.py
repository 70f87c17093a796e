"""Writes the generated parts of the pages in docs/: ``python docs/generate.py``.

They come from compat.toml, the declarations of patches/, and what the model families
gave (tests/families/results.json). Between ``<!-- generated: NAME -->`` and
``<!-- end -->`` nothing is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from specshim.__main__ import COMMANDS  # noqa: E402
from specshim.commands.help import ALWAYS, HELP  # noqa: E402
from specshim.patching import APPLY, OPEN, Patch  # noqa: E402
from specshim.patching.catalogue import everything  # noqa: E402
from specshim.patching.gate import judge_release  # noqa: E402

PACKAGES = ("vllm", "speculators", "hs_connectors")
UPSTREAM = {
    "vllm": "vllm-project/vllm",
    "speculators": "vllm-project/speculators",
}


def compat() -> Mapping[str, list[dict[str, Any]]]:
    """compat.toml as it stands."""
    content: dict[str, list[dict[str, Any]]] = tomllib.loads(
        (ROOT / "compat.toml").read_text()
    )
    return content


def results() -> list[dict[str, Any]]:
    """What the runs of model families gave."""
    found: list[dict[str, Any]] = json.loads(
        (ROOT / "tests" / "families" / "results.json").read_text()
    )
    return found


def vllm_releases() -> str:
    """A line a release of vLLM, the newest first: what is run there, what is mended."""
    listed = compat()
    runs: dict[str, Counter[str]] = {}
    for result in results():
        runs.setdefault(result["release"], Counter())[result["result"]] += 1
    entries = [
        *[(e["version"], _how(e)) for e in listed["vllm"]],
        *[
            (e["version"], "its code is read")
            for e in listed["sources"]
            if e["package"] == "vllm"
        ],
    ]
    lines = []
    for version, how in sorted(entries, key=lambda e: _number(e[0]), reverse=True):
        found = runs.get(version, Counter())
        models = f"{found['right']} of {found.total()}" if found else ""
        lines.append((version, how, models, _mended("vllm", version)))
    return table(("vLLM", "tests", "model runs right", "patches in range"), lines)


def other_releases() -> str:
    """The same for speculators and hs_connectors."""
    lines = [
        (f"{package} {entry['version']}", _mended(package, entry["version"]))
        for package in PACKAGES[1:]
        for entry in reversed(compat()[package])
    ]
    return table(("release", "patches in range"), lines)


def overview() -> str:
    """A line a patch, with its range and when it can go."""
    return "\n\n".join(
        f"### {package}\n\n"
        + table(
            ("patch", "affected", "upstream", "can go when"),
            [
                (
                    f"[{patch.id}](#{patch.id})",
                    _range(patch),
                    ", ".join(map(_issue, patch.upstream)),
                    _can_go(patch),
                )
                for patch in _sorted(package)
                if patch.kind == "patch"
            ],
        )
        for package in PACKAGES
    )


def details() -> str:
    """A section a patch: symptom, what to look at, where it acts."""
    return "\n\n".join(
        _section(patch)
        for package in PACKAGES
        for patch in _sorted(package)
        if patch.kind == "patch"
    )


def own() -> str:
    """The hooks and aids: what specshim itself needs of vLLM."""
    return table(
        ("id", "kind", "what", "why", "vLLM", "processes"),
        [
            (
                f"`{patch.id}`",
                patch.kind,
                text(patch.summary),
                text(patch.why),
                _range(patch),
                ", ".join(patch.processes),
            )
            for patch in _sorted("vllm")
            if patch.kind != "patch"
        ],
    )


def commands() -> str:
    """Each command: what it is for, examples, exit statuses, as its --help has them."""
    titles = {
        **{name: (f"specshim {name}", said) for name, (_, said) in COMMANDS.items()},
        "launch_vllm": ("python -m specshim.launch_vllm", "start a server"),
    }
    return "\n\n".join(
        "\n".join(
            [
                f"### {title}",
                "",
                f"{said[:1].upper()}{said[1:]}.",
                "",
                "```bash",
                *[f"{line}  # {why}" for line, why in HELP[name].examples],
                "```",
                "",
                table(
                    ("exit status", ""),
                    [(str(k), v) for k, v in HELP[name].statuses.items()],
                ),
            ]
        )
        for name, (title, said) in titles.items()
    )


def always() -> str:
    """What any command may end with."""
    return table(("exit status", ""), [(str(k), v) for k, v in ALWAYS.items()])


def example() -> str:
    """A patch as it stands."""
    path = ROOT / "patches" / "vllm" / "abort_before_schedule.py"
    return f"```python\n{path.read_text().rstrip()}\n```"


PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "commands.md": {"commands": commands, "always": always},
    "writing-a-patch.md": {"example": example},
    "compatibility.md": {"vllm": vllm_releases, "others": other_releases},
    "patches.md": {"overview": overview, "details": details, "own": own},
}


def render(name: str, page: str) -> str:
    """``page``, the text of docs/``name``, with its generated parts as they are due."""
    for part, make in PAGES[name].items():
        pattern = rf"(<!-- generated: {part} -->\n).*?(\n<!-- end -->)"
        block = make()
        page, count = re.subn(
            pattern,
            lambda found, block=block: f"{found[1]}\n{block}\n{found[2]}",
            page,
            flags=re.DOTALL,
        )
        assert count == 1, f"docs/{name} has no place for {part}"
    return page


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def text(sentence: str) -> str:
    """A sentence of a declaration as Markdown: nothing in it is markup."""
    sentence = " ".join(sentence.split())
    return re.sub(r"([|*_<>\[\]])", r"\\\1", sentence.replace("``", "`"))


def _section(patch: Patch) -> str:
    lines = [
        f"### {patch.id}",
        "",
        text(patch.summary[:1].upper() + patch.summary[1:]) + ".",
        "",
        f"- **Symptom and cause**: {text(patch.why)}",
        f"- **How to see it**: {text(patch.see)}",
        f"- **Affected**: {patch.package} {_range(patch)}",
        f"- **Upstream**: {', '.join(map(_issue, patch.upstream)) or 'not reported'}; "
        f"can go when: {_can_go(patch)}",
        f"- **Acts in**: {', '.join(patch.processes)}; "
        f"switch off with `SPECSHIM_DISABLE={patch.id}`",
    ]
    return "\n".join(lines)


def _sorted(package: str) -> list[Patch]:
    return sorted((p for p in everything() if p.package == package), key=_id)


def _id(patch: Patch) -> str:
    return patch.id


def _range(patch: Patch) -> str:
    return f"`{patch.range}`"


def _can_go(patch: Patch) -> str:
    return patch.remove_when if patch.remove_when == OPEN else f"`{patch.remove_when}`"


def _issue(name: str) -> str:
    package, _, number = name.partition("#")
    if package not in UPSTREAM:
        return name
    return f"[{name}](https://github.com/{UPSTREAM[package]}/issues/{number})"


def _mended(package: str, version: str) -> str:
    """How many patches are for a release; a new one is judged by its code alone."""
    patches = [p for p in everything() if p.package == package and p.kind == "patch"]
    verdicts = [judge_release(patch, version) for patch in patches]
    if None in verdicts:
        return f"{verdicts.count(None)}, where its code looks as expected"
    return str(sum(verdict.kind == APPLY for verdict in verdicts if verdict))


def _how(entry: Mapping[str, Any]) -> str:
    if "on" in entry:
        return "its code is read"
    if "beside" in entry:
        below = str(entry["beside"]).removeprefix("vllm-")
        return f"servers, its wheel over the environment of {below}"
    return "servers, in an environment of its own"


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])


def main() -> None:
    """Write every generated part anew, docs/models.md included."""
    sys.path.insert(0, str(ROOT / "tests" / "families"))
    import models_page

    models_page.write_all()
    for name in PAGES:
        path = HERE / name
        path.write_text(render(name, path.read_text()))


if __name__ == "__main__":
    main()
