"""vllm#51016: pages smaller than a token's hidden states stop hybrid models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "tp_page_assert"
FAULT = "stopped in page_size_bytes"


@pytest.mark.parametrize("release", ["vllm-0.22.1", "vllm-0.29.0"])
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#51016")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", ["vllm-0.22.1", "vllm-0.29.0"])
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.30.0", patched=False, fault=FAULT)
