"""vllm#48124, vllm#43130: models that return too few states of layers, or none.

Upstream's engine does not run on the CPU without the other patches, so it is
pristine here but for those.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

CASES = [
    (
        "last_layer_missing",
        "vllm-0.24.0",
        "last-layer-missing,layers-not-as-asked",
        "AssertionError: layer 4 in both places",
    ),
    (
        "no_eagle3_interface",
        "vllm-0.32.0",
        "no-eagle3-interface",
        "RuntimeError: Engine core initialization failed",
    ),
]


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#48124, #43130")
@pytest.mark.parametrize(("name", "release", "without", "fault"), CASES)
def test_upstream_shows_the_fault(
    check: Callable, name: str, release: str, without: str, fault: str
) -> None:
    check(name, on=release, patched=True, fault=fault, without=without)


@pytest.mark.parametrize(("name", "release", "without", "fault"), CASES)
def test_patched_upstream_passes(
    check: Callable, name: str, release: str, without: str, fault: str
) -> None:
    check(name, on=release, patched=True, fault=fault)


def test_upstream_has_the_last_layer_fixed(check: Callable) -> None:
    check("last_layer_missing", on="vllm-0.32.0", patched=True, fault="AssertionError")
