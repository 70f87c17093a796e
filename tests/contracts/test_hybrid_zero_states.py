"""vllm#46301: hidden states of hybrid models saved as zeros or as others' rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "hybrid_zero_states"
FAULT = "rows of others"


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#46301")
def test_pristine_upstream_shows_the_fault(check: Callable) -> None:
    check(NAME, on="vllm-0.24.0", patched=False, fault=FAULT)


def test_patched_upstream_passes(check: Callable) -> None:
    check(NAME, on="vllm-0.24.0", patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.25.1", patched=False, fault=FAULT)
