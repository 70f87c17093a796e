"""speculators' own dataset and data loader, with workers, against a server."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
import soak_reference
from e2e_values import LAYER_IDS
from serving import environment, python_of, serve

from specshim.tiny import ensure_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.envs]

WORKERS = 3
PROMPTS = 40
LONGEST = 300


@pytest.mark.parametrize(
    "samples", [200, pytest.param(2000, marks=pytest.mark.extended)]
)
def test_every_sample_that_the_dataset_asks_for_is_there_and_right(tmp_path, samples):
    model = ensure_tiny_model("gemma3", tmp_path / "models")  # a hybrid
    references = tmp_path / "references.pt"
    soak_reference.make(
        str(model), str(references), "float32", "cpu", PROMPTS, LONGEST, LAYER_IDS
    )
    command = [
        *(python_of("vllm-0.32.0"), "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(tmp_path / "hs")),
        *("--target-layer-ids", *map(str, LAYER_IDS[:-1])),
        *("--", "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
    ]
    job = {
        "folder": str(tmp_path / "dataset"),
        "references": str(references),
        "samples": samples,
        "workers": WORKERS,
    }
    with serve(command, model, tmp_path) as server:
        done = subprocess.run(
            [
                python_of("speculators-0.9.0"),
                str(Path(__file__).with_name("train_like.py")),
            ],
            input=json.dumps({**job, "endpoint": f"{server.url}/v1"}),
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr[-4000:]
        seen = json.loads(done.stdout.splitlines()[-1])
        print(seen)
        assert (seen["right"], seen["wrong"], seen["dropped"]) == (samples, 0, 0), (
            done.stderr[-4000:]
        )
        time.sleep(1)
        assert server.leftovers() == []
