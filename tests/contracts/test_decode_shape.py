"""After a decode step there are two draft tokens for each request."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "decode_shape"
FAULT = "RuntimeError: output with shape [2, 1] doesn't match"


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="fixed in 0.20.0")
def test_pristine_upstream_shows_the_fault(check: Callable) -> None:
    check(NAME, on="vllm-0.19.1", patched=False, fault=FAULT)


def test_patched_upstream_passes(check: Callable) -> None:
    check(NAME, on="vllm-0.19.1", patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.20.1", patched=False, fault=FAULT)
