"""vllm#51108: the hidden states' block size spoils prefix caching."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "lcm_hash_assert"
FAULT = "hashed at 1, found at 98464 tokens"


@pytest.mark.parametrize("release", ["vllm-0.26.0"])
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#51108")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", ["vllm-0.26.0"])
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.28.0", patched=False, fault=FAULT)
