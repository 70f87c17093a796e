"""The example script does what it says, with the tiny model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from serving import environment, python_of

from specshim.server_process import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.extended]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("kind", "mode"), [("eagle3", "online"), ("dflash", "offline")]
)
def test_a_drafter_is_trained(tmp_path: Path, kind: str, mode: str) -> None:
    done = subprocess.run(
        ["bash", str(EXAMPLES / "train_drafter.sh")],
        env=environment(
            OUTPUT_DIR=str(tmp_path),
            VLLM_PYTHON=python_of("vllm-0.32.0"),
            TRAIN_PYTHON=python_of("speculators-0.9.0"),
            VLLM_PORT=str(free_port()),
            SPECULATOR_TYPE=kind,
            MODE=mode,
            EPOCHS="2",
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    assert (tmp_path / "checkpoints" / "1" / "model.safetensors").is_file()
    assert os.listdir(tmp_path / "served") == []
