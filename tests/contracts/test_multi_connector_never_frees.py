"""Beside a connector that says nothing, the stock one is awaited on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "multi_connector_never_frees"
FAULT = "blocks are never freed: ['one', 'other']"


@pytest.mark.parametrize("release", ["vllm-0.31.0", "vllm-0.32.0"])
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="no report known")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", ["vllm-0.31.0", "vllm-0.32.0"])
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
