"""Requests that were running lend their rows to a prompt that joins them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "batch_order_offset"
FAULT = "AssertionError: later: rows 0 to 19 are not its own"


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="no public report")
def test_pristine_upstream_shows_the_fault(check: Callable) -> None:
    check(NAME, on="vllm-0.22.1", patched=False, fault=FAULT)


def test_patched_upstream_passes(check: Callable) -> None:
    check(NAME, on="vllm-0.22.1", patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.24.0", patched=False, fault=FAULT)
