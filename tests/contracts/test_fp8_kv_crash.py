"""vllm#39160: an FP8 KV cache stops the server at start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "fp8_kv_crash"
FAULT = "AssertionError: CacheOnlyAttentionLayer doesn't currently support"


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#39160")
def test_pristine_upstream_shows_the_fault(check: Callable) -> None:
    check(NAME, on="vllm-0.19.1", patched=False, fault=FAULT)


def test_patched_upstream_passes(check: Callable) -> None:
    check(NAME, on="vllm-0.19.1", patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.20.1", patched=False, fault=FAULT)
