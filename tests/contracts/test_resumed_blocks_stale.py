"""A preempted request is saved from the blocks that it had before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "resumed_blocks_stale"
FAULT = "AssertionError: preempted: rows "


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="no public report")
def test_pristine_upstream_shows_the_fault(check: Callable) -> None:
    check(NAME, on="vllm-0.20.1", patched=False, fault=FAULT)


def test_patched_upstream_passes(check: Callable) -> None:
    check(NAME, on="vllm-0.20.1", patched=True, fault=FAULT)
