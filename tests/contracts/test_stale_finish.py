"""vllm#43226: a late report about a request that is gone stops the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "stale_finish"
FAULT = "the scheduler insists on knowing the request"
# The connector reports what was never scheduled up to 0.30; the asserts are in all.
RELEASES = ("vllm-0.24.0", "vllm-0.32.0")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#43226")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
