"""A training repo imports specshim before speculators, and does nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.envs

HERE = Path(__file__).parent
SCRIPT = HERE / "scripts" / "trained_on_zeros.py"
CHECKS = HERE.parent / "contracts" / "checks"


def test_a_cached_file_of_zeros_is_skipped(environment: Callable) -> None:
    python = environment("speculators-0.9.0")
    done = python.run(str(SCRIPT), str(CHECKS))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-3:] == [
        "Sample 0 (hs_0.safetensors) is skipped. Hidden states refused: all 24 rows "
        "are zero in every layer, so none was computed.",
        "trained on: the good sample",
        "patch: applied",
    ]


def test_without_specshim_the_zeros_are_trained_on(environment: Callable) -> None:
    python = environment("speculators-0.9.0")
    done = python.run(str(SCRIPT), str(CHECKS), variables={"SPECSHIM": "0"})
    assert "trained on: tensor([[0., 0., 0.," in done.stdout
