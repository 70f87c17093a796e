"""vllm#43810: padding overwrites the last slot of the KV cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "padding_slot_overwrite"
FAULT = "AssertionError: last: rows 47 to 47 are not its own"
RELEASES = ("vllm-0.18.1", "vllm-0.24.0")  # one of each form


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#43810")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.25.1", patched=False, fault=FAULT)
