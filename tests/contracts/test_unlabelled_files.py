"""speculators#705: nothing in a file says of which model and layers it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "unlabelled_files"
FAULT = "the file has no labels"
# One release of each way of writing, and both layouts of the cache that is read.
RELEASES = ("vllm-0.20.1", "vllm-0.22.1", "vllm-0.24.0", "vllm-0.32.0")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="speculators#705")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
