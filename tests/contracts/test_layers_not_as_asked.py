"""vllm#48124: the states of a layer that the model leaves out are another's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "layers_not_as_asked"
FAULT = "AssertionError: layer 1 was kept in the place of layer 4"
RELEASES = ["vllm-0.20.1", "vllm-0.32.0"]  # the drafter's two signatures


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#48124")
@pytest.mark.parametrize("release", RELEASES)
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
