"""vllm#56774: hidden states cost as much as all layers of a group."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "group_width_billing"
FAULT = "hidden states of 4.5 GiB cost 103."


@pytest.mark.parametrize("release", ["vllm-0.26.0", "vllm-0.32.0"])
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#56774")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", ["vllm-0.26.0", "vllm-0.32.0"])
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
