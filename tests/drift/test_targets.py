"""Every target is where its declaration says, on every release that we test or read.

SPECSHIM_TEST_SOURCES maps releases that are only read to the folders that hold their
packages, as JSON: ``{"vllm-0.33.0": "/path/site-packages"}``. ``nox -s sources`` sets
it; without it those releases are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from compat import READ, releases

from specshim.detect.hooks import missing_hooks
from specshim.patching import REFUSED, Patch
from specshim.patching.catalogue import everything
from specshim.patching.report import judge_tree

VARIABLE = "SPECSHIM_TEST_SOURCES"

CASES = [
    pytest.param(patch, version, id=f"{patch.id}-{version}")
    for patch in everything()
    for version in releases(patch.package)
]


@pytest.mark.envs
@pytest.mark.parametrize(("patch", "version"), CASES)
def test_no_known_release_refuses(
    environment: Callable, patch: Patch, version: str
) -> None:
    python = environment(f"{patch.package}-{version}")
    root = python.evaluate("import sysconfig; print(sysconfig.get_path('purelib'))")
    verdict = judge_tree(patch, version, Path(root))
    assert verdict.kind != REFUSED, verdict.reason


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
