"""Every target is where its declaration says, on every release that we test or read.

SPECSHIM_TEST_SOURCES maps releases that are only read to the folders that hold their
packages, as JSON: ``{"vllm-0.33.0": "/path/site-packages"}``. ``nox -s sources`` sets
it; without it those releases are skipped.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from compat import READ, releases
from packaging.version import Version

from specshim.detect.hooks import missing_hooks
from specshim.patching import APPLY, NOT_NEEDED, OPEN, REFUSED, Patch
from specshim.patching.catalogue import everything
from specshim.patching.report import judge_tree

VARIABLE = "SPECSHIM_TEST_SOURCES"

CASES = [
    pytest.param(patch, version, id=f"{patch.id}-{version}")
    for patch in everything()
    for version in releases(patch.package)
]

TOLD_BY_THEIR_LOOK = ("nfs-flock", "nfs-flock-vendored")
"""A post release of the last faulty release has the repair."""

NEVER_CHANGED = (
    "cpu-sampler-keywords",
    "fp8-kv-crash",
    "last-layer-missing",
    "mla-verifier-group-lookup",
)
"""Repaired elsewhere, the wrapped function stayed as it was; its wrapper then finds
nothing to do."""

ENDED = [
    patch
    for patch in everything()
    if patch.kind == "patch"
    and patch.remove_when != OPEN
    and patch.id not in NEVER_CHANGED + TOLD_BY_THEIR_LOOK
]


@pytest.fixture(scope="session")
def tree(environment: Callable) -> Callable[[str], Path]:
    """The site-packages of an environment."""

    @functools.cache
    def find(name: str) -> Path:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(environment(name).evaluate(code))

    return find


@pytest.mark.envs
@pytest.mark.parametrize(("patch", "version"), CASES)
def test_no_known_release_refuses(tree: Callable, patch: Patch, version: str) -> None:
    verdict = judge_tree(patch, version, tree(f"{patch.package}-{version}"))
    wanted = (APPLY,) if patch.affects.contains(version) else (NOT_NEEDED,)
    if patch.id in TOLD_BY_THEIR_LOOK:
        wanted = (APPLY, NOT_NEEDED)
    assert verdict.kind in wanted, verdict.reason


@pytest.mark.envs
@pytest.mark.parametrize("patch", ENDED, ids=lambda patch: patch.id)
def test_unknown_releases_are_judged_by_their_code(
    tree: Callable, patch: Patch
) -> None:
    inside = [v for v in releases(patch.package) if patch.affects.contains(v)]
    after = [v for v in releases(patch.package) if Version(v) > Version(inside[-1])]
    verdicts = [
        judge_tree(patch, "0.1.dev1+gabc123", tree(f"{patch.package}-{version}")).kind
        for version in (inside[-1], after[0])
    ]
    assert verdicts[0] == APPLY
    assert verdicts[1] != APPLY


@pytest.mark.parametrize("release", READ)
def test_a_release_that_is_only_read_refuses_nothing(release: str) -> None:
    folders = json.loads(os.environ.get(VARIABLE, "{}"))
    if release not in folders:
        pytest.skip(f"{VARIABLE} has no {release} (nox -s sources sets it)")
    package, _, version = release.partition("-")
    root = Path(folders[release])
    verdicts = {
        patch.id: judge_tree(patch, version, root)
        for patch in everything()
        if patch.package == package
    }
    refused = {k: v.reason for k, v in verdicts.items() if v.kind == REFUSED}
    assert not refused
    assert package != "vllm" or missing_hooks(root / package) == ()
