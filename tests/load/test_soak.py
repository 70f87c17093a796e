"""Three minutes of the soak; `nox -s soak` runs half an hour of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")
from serving import environment, python_of

pytestmark = [pytest.mark.e2e, pytest.mark.envs]


def test_three_minutes_under_load(tmp_path):
    report = tmp_path / "soak.json"
    done = subprocess.run(
        [
            *(python_of("vllm-0.32.0"), str(Path(__file__).with_name("soak.py"))),
            *("--minutes", "3", "--json", str(report)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env=environment(),
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = json.loads(report.read_text())
    assert found["held"] and found["broken"] == []
    counts = found["counts"]
    assert (counts["lost"], counts["wrong"], counts["errors"]) == (0, 0, 0)
    assert counts["samples"] >= 50 and counts["verified"] and counts["aborted"]
