"""Every declaration keeps the rules that cannot be seen from one module alone."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from compat import COMPAT, ROOT, releases
from packaging.requirements import Requirement

from specshim import _vllm_facts as facts
from specshim.demo import INSTALL_COMMAND
from specshim.patching import OPEN, Patch
from specshim.patching.catalogue import PACKAGES, aids, everything, hooks, patches
from specshim.patching.gate import NEWEST_KNOWN
from specshim.tap import hooks as tap_hooks


def test_ids_are_unique() -> None:
    ids = [patch.id for patch in everything()]
    assert len(ids) == len(set(ids))
    assert "abort-before-schedule" in ids
    assert "reroute" in ids


@pytest.mark.parametrize("package", PACKAGES)
def test_patches_lie_where_they_belong(package: str) -> None:
    for patch in patches(package):
        assert patch.package == package
        name = patch.id.replace("-", "_")
        assert import_module(f"specshim.patches.{package}.{name}").PATCH is patch
        assert patch.kind == "patch"
    assert all(hook.kind == "hook" for hook in hooks(package))
    assert all(aid.kind == "aid" for aid in aids(package))


@pytest.mark.parametrize("patch", everything(), ids=lambda p: p.id)
def test_when_a_patch_can_go_agrees_with_its_range(patch: Patch) -> None:
    if patch.kind != "patch":
        return
    newest = NEWEST_KNOWN[patch.package]
    still_there = patch.affects.contains(newest, prereleases=True)
    assert still_there == (patch.remove_when == OPEN)
    if not still_there:
        requirement = Requirement(patch.remove_when)
        assert requirement.name == patch.package
        assert requirement.specifier.contains(newest, prereleases=True)


@pytest.mark.parametrize("patch", everything(), ids=lambda p: p.id)
def test_a_patch_says_how_a_user_sees_it(patch: Patch) -> None:
    if patch.kind != "patch":
        return
    assert "ith the patch" in patch.see, "what is seen without it, and what with it"
    assert patch.see.endswith(".")
    assert all(target.wrapper.__doc__ for target in patch.targets)


@pytest.mark.parametrize("package", ["vllm", "speculators"])
def test_newest_known_release_is_the_newest_tested(package: str) -> None:
    assert releases(package)[-1] == NEWEST_KNOWN[package]


def test_the_demo_is_installed_and_built_as_the_newest_tested_vllm() -> None:
    newest = COMPAT["vllm"][-1]
    printed, _, _ = INSTALL_COMMAND.partition(" > ")
    assert printed == "printf '" + "".join(rf"{p}\n" for p in newest["overrides"]) + "'"
    assert INSTALL_COMMAND.endswith(f" {newest['distribution']}=={newest['version']}")
    built = re.search(r'^DEMO = "(.*)"$', (ROOT / "noxfile.py").read_text(), re.M)
    assert built and built[1] == f"vllm-{newest['version']}"


def test_the_tap_has_one_module_path() -> None:
    assert tap_hooks.MODULE == facts.TAP_MODULE
