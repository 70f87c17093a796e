"""The gate: does this patch belong on this release? Two questions, three verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specshim.patching.declaration import LOWER, UPPER, Form, Patch, Target

if TYPE_CHECKING:
    from packaging.version import Version

APPLY = "APPLY"
NOT_NEEDED = "NOT_NEEDED"
REFUSED = "REFUSED"

# The newest releases that were read and tested (compat.toml; a test compares).
# Beyond them an open-ended fault is judged by its fingerprint alone.
NEWEST_KNOWN: Mapping[str, str] = {
    "vllm": "0.32.0",
    "speculators": "0.9.0",
    "hs_connectors": "0.9.0",
}


@dataclass(frozen=True)
class Verdict:
    """APPLY, NOT_NEEDED or REFUSED, and the sentence that says why."""

    kind: str
    reason: str


def judge(
    patch: Patch, version: str | None, forms: Mapping[str, Form | None]
) -> Verdict:
    """The verdict on ``patch`` for the release ``version`` of its package.

    Args:
        version: as the package says it; None or unparsable counts as unknown.
        forms: of each target at each of its places, by that name; None where
            it was not found.
    """
    by_range = judge_release(patch, version)
    if by_range is not None and by_range.kind == NOT_NEEDED:
        return by_range
    release = f"{patch.package} {version or 'of unknown version'}"
    if all(_is_repaired(t, forms) for t in patch.targets):
        return Verdict(NOT_NEEDED, f"{release} has the repaired code.")
    problems = [text for t in patch.targets if (text := _problem(t, forms))]
    if problems:
        return Verdict(
            REFUSED, f"{release} is not what {patch.id} was written for: {problems[0]}."
        )
    known = "in range and" if by_range else "no known release, but"
    return Verdict(APPLY, f"{release} is {known} looks as expected.")


def judge_release(patch: Patch, version: str | None) -> Verdict | None:
    """The verdict by the release range alone; None where only the look can tell.

    That is so for a version that cannot be read, for development and pre-releases,
    and for releases newer than any we know if the fault was still open in the
    newest one.
    """
    parsed = _parse(version)
    if parsed is None or _is_development(parsed):
        return None
    name = f"{patch.package} {version}"
    if patch.affects.contains(parsed, prereleases=True):
        return Verdict(APPLY, f"{name} is in the affected range {patch.range}.")
    newest = _parse(NEWEST_KNOWN.get(patch.package))
    lower, upper = _bounds(patch)
    if parsed < lower:
        return Verdict(NOT_NEEDED, f"{name} is older than the fault ({patch.range}).")
    if newest is not None and parsed > newest and upper >= newest:
        return None
    if patch.kind != "patch":
        return Verdict(REFUSED, f"{name} is outside {patch.range}.")
    return Verdict(NOT_NEEDED, f"{name} has it fixed upstream ({patch.range}).")


def switched_off(patch: Patch, variables: Mapping[str, str]) -> str | None:
    """The sentence that says which variable switched ``patch`` off, or None.

    ``SPECSHIM_DISABLE=id,id`` names patches, aids and hooks; ``*`` there and
    ``SPECSHIM_ONLY`` do not speak of hooks, since a route cannot do without its own.
    ``SPECSHIM=0`` switches off everything.
    """
    if variables.get("SPECSHIM") == "0":
        return "SPECSHIM=0 switches specshim off."
    disable = _names(variables.get("SPECSHIM_DISABLE"))
    if patch.id in disable or ("*" in disable and patch.kind != "hook"):
        return f"SPECSHIM_DISABLE={variables['SPECSHIM_DISABLE']} switches it off."
    only = _names(variables.get("SPECSHIM_ONLY"))
    if only and patch.kind != "hook" and patch.id not in only:
        return f"SPECSHIM_ONLY={variables['SPECSHIM_ONLY']} leaves it out."
    return None


def _names(value: str | None) -> frozenset[str]:
    return frozenset(part.strip() for part in (value or "").split(",") if part.strip())


def _is_repaired(target: Target, forms: Mapping[str, Form | None]) -> bool:
    found = _found(target, forms)
    if target.fixed is None or found is None:
        return False
    return target.fixed.mismatch(found[1]) is None


def _problem(target: Target, forms: Mapping[str, Form | None]) -> str | None:
    found = _found(target, forms)
    if found is None:
        return f"{' or '.join(target.places)} does not exist"
    place, form = found
    differ = [fingerprint.mismatch(form) for fingerprint in target.forms]
    return None if None in differ else f"{place}: {differ[0]}"


def _found(target: Target, forms: Mapping[str, Form | None]) -> tuple[str, Form] | None:
    """The first place of ``target`` that has the function, and its look there."""
    looks = ((place, forms.get(place)) for place in target.places)
    return next(((place, form) for place, form in looks if form is not None), None)


def _parse(version: str | None) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) if version else None
    except InvalidVersion:
        return None


def _is_development(version: Version) -> bool:
    # setuptools-scm writes 0.21.1.dev45+g12ab; a local part of +g12ab alone means
    # a build from a commit as well, whereas +cpu and +cu129 are releases.
    local = version.local or ""
    from_commit = local.startswith("g") and any(c.isdigit() for c in local)
    return version.is_prerelease or from_commit


def _bounds(patch: Patch) -> tuple[Version, Version]:
    from packaging.version import Version

    ends = [(spec.operator, Version(spec.version)) for spec in patch.affects]
    return (
        max(version for operator, version in ends if operator in LOWER),
        min(version for operator, version in ends if operator in UPPER),
    )
