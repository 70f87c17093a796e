"""vllm#53243: hidden states inflate the pages of DeepSeek-V4."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "deepseek_v4_inflation"
FAULT = "hidden states of 0.25 GiB cost "


@pytest.mark.parametrize("release", ["vllm-0.26.0", "vllm-0.28.0", "vllm-0.32.0"])
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#53243")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", ["vllm-0.26.0", "vllm-0.28.0", "vllm-0.32.0"])
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
