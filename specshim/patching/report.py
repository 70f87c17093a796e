"""Every declaration with its verdict for what is installed, without importing it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specshim.patching import gate
from specshim.patching.declaration import Patch, split_name
from specshim.patching.form import form_in_tree


@dataclass(frozen=True)
class Row:
    """One declaration, and what becomes of it here.

    ``verdict`` is APPLY, NOT_NEEDED, REFUSED, OFF (a variable), ABSENT (its package
    is not installed), or UNKNOWN (a release without sources that ranges don't cover).
    """

    patch: Patch
    version: str | None
    verdict: str
    reason: str

    def as_data(self) -> dict[str, object]:
        patch = self.patch
        return {
            "id": patch.id,
            "kind": patch.kind,
            "package": patch.package,
            "installed": self.version,
            "verdict": self.verdict,
            "reason": self.reason,
            "summary": patch.summary,
            "why": patch.why,
            "see": patch.see,
            "affects": patch.range,
            "upstream": list(patch.upstream),
            "targets": [" or ".join(target.places) for target in patch.targets],
            "processes": list(patch.processes),
            "rung": patch.rung,
            "why_not_lower": patch.why_not_lower,
            "remove_when": patch.remove_when,
        }


def rows(versions: Mapping[str, str | None]) -> tuple[Row, ...]:
    """A row for each declaration. ``versions``: by package, None where absent."""
    from specshim.patching.catalogue import everything

    return tuple(
        row_of(patch, versions.get(patch.package), _root_of(patch.package))
        for patch in everything()
    )


def installed_versions() -> dict[str, str | None]:
    """Versions of the packages that declarations touch, as detection found them."""
    from specshim.detect.versions import find_vllm, version_of

    vllm = find_vllm()
    return {
        "vllm": vllm.version if vllm else None,
        "speculators": version_of("speculators"),
        "hs_connectors": version_of("hs_connectors"),
    }


def row_of(patch: Patch, version: str | None, root: Path | None) -> Row:
    """The row of one declaration for the release ``version`` of its package.

    Args:
        version: None where the package is not installed.
        root: the folder that holds the package; None for a release that is named
            alone, which is judged by the ranges.
    """
    off = gate.switched_off(patch, os.environ)
    if off:
        return Row(patch, version, "OFF", off)
    if version is None:
        return Row(patch, None, "ABSENT", f"{patch.package} is not installed.")
    if root is not None:
        verdict = judge_tree(patch, version, root)
    else:
        verdict = gate.judge_release(patch, version) or gate.Verdict(
            "UNKNOWN",
            f"Only the sources of {patch.package} {version} can tell, where it is "
            "installed.",
        )
    return Row(patch, version, verdict.kind, verdict.reason)


def judge_tree(patch: Patch, version: str | None, root: Path) -> gate.Verdict:
    """The verdict on ``patch`` against the sources under ``root``."""
    places = [place for target in patch.targets for place in target.places]
    forms = {place: form_in_tree(root, *split_name(place)) for place in places}
    return gate.judge(patch, version, forms)


def _root_of(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent.parent
