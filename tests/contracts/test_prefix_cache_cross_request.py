"""vllm#44485: a cached prefix leaves a prompt without rows, or with others'."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "prefix_cache_cross_request"
FAULT = (
    "AssertionError: alone: 2 rows for 34 tokens; first: rows 0 to 34 are not its own"
)


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#44485")
def test_pristine_upstream_shows_the_fault(check: Callable) -> None:
    check(NAME, on="vllm-0.22.1", patched=False, fault=FAULT)


def test_patched_upstream_passes(check: Callable) -> None:
    check(NAME, on="vllm-0.22.1", patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.24.0", patched=False, fault=FAULT)
