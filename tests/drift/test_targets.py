"""Every target is where its declaration says, on every release that we test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from compat import releases

from specshim.patching import REFUSED, Patch
from specshim.patching.catalogue import everything
from specshim.patching.report import judge_tree

pytestmark = pytest.mark.envs

CASES = [
    pytest.param(patch, version, id=f"{patch.id}-{version}")
    for patch in everything()
    for version in releases(patch.package)
]


@pytest.mark.parametrize(("patch", "version"), CASES)
def test_no_known_release_refuses(
    environment: Callable, patch: Patch, version: str
) -> None:
    python = environment(f"{patch.package}-{version}")
    root = python.evaluate("import sysconfig; print(sysconfig.get_path('purelib'))")
    verdict = judge_tree(patch, version, Path(root))
    assert verdict.kind != REFUSED, verdict.reason
