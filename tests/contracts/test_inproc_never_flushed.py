"""With the engine in the caller's process, the last files are never written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "inproc_never_flushed"
FAULT = "never written"
RELEASES = ("vllm-0.24.0", "vllm-0.32.0")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="reported nowhere")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=False, fault=FAULT)


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check(NAME, on=release, patched=True, fault=FAULT)


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="reported nowhere")
def test_a_real_engine_without_the_patch_shows_the_fault(check: Callable) -> None:
    # The stock connector cannot copy on the CPU without the other patches.
    check(
        "inproc_llm",
        on="vllm-0.32.0",
        patched=True,
        without="inproc-never-flushed",
        fault=FAULT,
    )


def test_a_real_engine_with_the_patch_passes(check: Callable) -> None:
    check("inproc_llm", on="vllm-0.32.0", patched=True, fault=FAULT)
