"""Pages that grow for hidden states put wrong Mamba states into the cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "scaled_page_mamba_states"
FAULT = "a state of"


@pytest.mark.parametrize("release", ["vllm-0.32.0"])
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="not reported")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", ["vllm-0.32.0"])
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
