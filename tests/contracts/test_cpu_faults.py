"""What keeps stock extraction from running on vLLM's CPU builds (no report known)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

CASES = [
    # One release for each form of the code: saved during the step, then at the end,
    # then from a cache with other axes.
    ("cpu_copy_stream", "vllm-0.22.1", "asks for CUDA"),
    ("cpu_copy_stream", "vllm-0.24.0", "asks for CUDA"),
    ("cpu_copy_stream", "vllm-0.32.0", "asks for CUDA"),
    (
        "cpu_sampler_keywords",
        "vllm-0.20.1",
        "TypeError: _rejection_greedy_sample_kernel_impl() got an unexpected",
    ),
    (
        "cpu_sampler_keywords",
        "vllm-0.24.0",
        "TypeError: _sample_recovered_tokens_kernel_impl() got an unexpected",
    ),
    (
        "cpu_aux_layers_unset",
        "vllm-0.20.1",
        "RuntimeError: Worker failed with error 'too many values to unpack",
    ),
]


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="not for the CPU")
@pytest.mark.parametrize(("name", "release", "fault"), CASES)
def test_pristine_upstream_shows_the_fault(
    check: Callable, name: str, release: str, fault: str
) -> None:
    check(name, on=release, patched=False, fault=fault)


@pytest.mark.parametrize(("name", "release", "fault"), CASES)
def test_patched_upstream_passes(
    check: Callable, name: str, release: str, fault: str
) -> None:
    check(name, on=release, patched=True, fault=fault)


def test_upstream_has_the_sampler_fixed(check: Callable) -> None:
    check("cpu_sampler_keywords", on="vllm-0.25.1", patched=False, fault="TypeError")
