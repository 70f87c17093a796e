"""The last chunk of a prompt is not saved where it needs no new block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "chunk_tail_stale"
FAULT = "AssertionError: chunked: rows 33 to 34 are not its own"
RELEASES = ("vllm-0.18.1", "vllm-0.21.0")  # one of each form


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="no public report")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
