"""vllm#56841: aborting a request that still waits kills the engine."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

NAME = "abort_before_schedule"
MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
STATE = f"""
import json, {MODULE}, specshim
specshim.install()
print(json.dumps(specshim.status()["patches"]["abort-before-schedule"]))
"""


@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="vllm#56841")
def test_pristine_upstream_shows_the_fault(check: Callable) -> None:
    check(NAME, on="vllm-0.24.0", patched=False, fault="KeyError: 'waiting'")


def test_patched_upstream_passes(check: Callable) -> None:
    check(NAME, on="vllm-0.24.0", patched=True, fault="KeyError: 'waiting'")


def test_upstream_has_it_fixed(check: Callable) -> None:
    check(NAME, on="vllm-0.32.0", patched=False, fault="KeyError: 'waiting'")


@pytest.mark.parametrize(
    ("release", "state", "reason"),
    [
        ("vllm-0.20.1", "not needed", "is older than the fault"),
        ("vllm-0.24.0", "applied", "is in range and looks as expected"),
        ("vllm-0.32.0", "not needed", "has it fixed upstream"),
    ],
)
def test_gate(environment: Callable, release: str, state: str, reason: str) -> None:
    entry = json.loads(environment(release).evaluate(STATE).splitlines()[-1])
    assert entry["state"] == state
    assert reason in entry["reason"]
