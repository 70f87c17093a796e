"""Each patch against upstream: the fault without it, none with it, and its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compat import runnable
from conftest import FaultShownError
from contract_table import CONTRACTS, EVERY_RUN, Contract

from specshim.patching import Patch
from specshim.patching.catalogue import patches
from specshim.patching.declaration import OPEN

pytestmark = pytest.mark.envs

# By vLLM, so that the newest connector shows it on an old vLLM only.
MENDED_BELOW = ("mla-verifier-group-lookup-mooncake",)
INSTALLED_WITH = {"hs_connectors-0.9.0": "speculators-0.9.0"}
PACKAGES = ("vllm", "speculators", "hs_connectors")
PATCHES = [patch for package in PACKAGES for patch in patches(package)]


def case(contract: Contract, release: str, mode: str) -> object:
    """A parameter; those that share a process share a group."""
    name = f"{contract.check}-{release}"
    group = f"{name}-{mode}" if contract.own else f"{release}-{mode}"
    if mode == "patched" and contract.without:
        group = f"{group}-without-{contract.without[0]}"
    marks = [pytest.mark.bench(group)]
    if contract.own or release not in EVERY_RUN:
        marks.append(pytest.mark.extended)
    return pytest.param(contract, release, id=name, marks=marks)


def cases(mode: str) -> list[object]:
    return [case(c, release, mode) for c in CONTRACTS for release in c.affected]


MENDED = [case(c, c.mended, "pristine") for c in CONTRACTS if c.mended]


def pristine(check: Callable, contract: Contract, release: str) -> None:
    check(
        contract.check,
        on=release,
        patched=contract.alone,
        without=contract.patches if contract.alone else (),
        fault=contract.fault,
        own=contract.own,
    )


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="upstream's fault")
@pytest.mark.parametrize(("contract", "release"), cases("pristine"))
def test_pristine_upstream_shows_the_fault(
    check: Callable, contract: Contract, release: str
) -> None:
    pristine(check, contract, release)


@pytest.mark.parametrize(("contract", "release"), MENDED)
def test_upstream_has_it_mended(
    check: Callable, contract: Contract, release: str
) -> None:
    pristine(check, contract, release)


@pytest.mark.parametrize(("contract", "release"), cases("patched"))
def test_patched_upstream_passes(
    check: Callable, contract: Contract, release: str
) -> None:
    applied = check(
        contract.check,
        on=release,
        patched=True,
        without=contract.without,
        fault=contract.fault,
        own=contract.own,
    )
    if not contract.own:  # an engine may have them in another process
        assert set(contract.patches) <= set(applied)


def test_every_patch_has_a_contract() -> None:
    covered = {patch for contract in CONTRACTS for patch in contract.patches}
    assert covered == {patch.id for patch in PATCHES}


@pytest.mark.parametrize(
    "patch", [p for p in PATCHES if p.remove_when == OPEN], ids=lambda patch: patch.id
)
def test_the_repair_of_a_fault_would_be_noticed(patch: Patch) -> None:
    """What is open upstream is tried, without the patch, on the newest release."""
    newest = f"{patch.package}-{runnable(patch.package)[-1]}"
    tried = {
        release
        for contract in CONTRACTS
        if patch.id in contract.patches
        for release in contract.affected
    }
    assert tried & {newest, INSTALLED_WITH.get(newest)} or patch.id in MENDED_BELOW
