"""Every declaration keeps the rules that cannot be seen from one module alone."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement

from specshim.patching import Patch
from specshim.patching.catalogue import PACKAGES, everything, hooks, patches
from specshim.patching.gate import NEWEST_KNOWN

if sys.version_info >= (3, 11):
    import tomllib
else:
    pytest.skip("tomllib came with Python 3.11", allow_module_level=True)

from pathlib import Path

COMPAT = tomllib.loads((Path(__file__).parents[2] / "compat.toml").read_text())


def test_ids_are_unique() -> None:
    ids = [patch.id for patch in everything()]
    assert len(ids) == len(set(ids))
    assert "abort-before-schedule" in ids
    assert "reroute" in ids


@pytest.mark.parametrize("package", PACKAGES)
def test_patches_lie_where_they_belong(package: str) -> None:
    for patch in patches(package):
        module = patch.targets[0].wrapper.__module__
        assert patch.package == package
        assert module.endswith(f"patches.{package}.{patch.id.replace('-', '_')}")
    assert all(hook.kind == "hook" for hook in hooks(package))


@pytest.mark.parametrize("patch", everything(), ids=lambda p: p.id)
def test_remove_when_is_a_requirement_on_the_package(patch: Patch) -> None:
    if patch.kind == "patch":
        assert Requirement(patch.remove_when).name == patch.package


@pytest.mark.parametrize("package", ["vllm", "speculators"])
def test_newest_known_release_is_the_newest_tested(package: str) -> None:
    assert COMPAT[package][-1]["version"] == NEWEST_KNOWN[package]
