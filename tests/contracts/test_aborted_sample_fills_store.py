"""hs_connectors' Mooncake connector stores samples that nobody is told of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "aborted_mooncake_sample"
FAULT = (
    "AssertionError: samples of aborted requests will be stored: ['running', 'waiting']"
)
RELEASES = ["hs_connectors-0.8.1", "hs_connectors-0.9.0"]


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="in every release")
@pytest.mark.parametrize("release", RELEASES)
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)
