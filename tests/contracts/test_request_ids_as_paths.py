"""Stock extraction takes the id that a client gives a request for a path."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

# One release of each form: saved in the forward, by writer threads, under a lock that
# is there before the answer, and the newest.
RELEASES = {
    "vllm-0.20.1": "the engine ends",
    "vllm-0.22.1": "the engine ends",
    "vllm-0.24.0": "written elsewhere",
    "vllm-0.32.0": "written elsewhere",
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="reported nowhere")
def test_pristine_upstream_shows_the_fault(check: Callable, release: str) -> None:
    check("request_ids_as_paths", on=release, patched=False, fault=RELEASES[release])


@pytest.mark.parametrize("release", RELEASES)
def test_patched_upstream_passes(check: Callable, release: str) -> None:
    check("request_ids_as_paths", on=release, patched=True, fault=RELEASES[release])
