"""Quantised caches and weights, where no transformers model computes the same.

The layers' own outputs, taken by hooks in a plain engine, are the reference.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from e2e_values import random_prompts, reference
from safetensors.torch import load_file
from serving import environment, load, python_of, run_offline
from stock_request import stock_request

pytestmark = pytest.mark.extended

LAYER_IDS = (2, 4, 8)
ENGINE = {
    "dtype": "bfloat16",
    "max_model_len": 512,
    "max_num_batched_tokens": 64,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}


@pytest.mark.parametrize(
    "options",
    [{}, {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8_e5m2"}],
    ids=str,
)
def test_the_tap_gives_what_the_layers_give(options, tiny, tmp_path):
    model, prompts = tiny("llama"), random_prompts(8, seed=12)
    args = {"model": str(model), **ENGINE, **options}
    python = python_of("vllm-0.32.0")
    given = hooked(python, args, prompts, tmp_path)
    calls = [{"prompts": [p], "sampling": {"max_tokens": 1}} for p in prompts]
    tapped = run_offline(
        python, {**args, **stock_request(tmp_path / "hs", LAYER_IDS)}, calls
    )
    exact = reference(model, prompts, LAYER_IDS)
    distances = []
    for rows, (answer,), float32 in zip(given, tapped, exact, strict=True):
        states = load(answer["hidden_states_path"])["hidden_states"]
        assert torch.equal(states, rows)
        distances.append(float((states.float() - float32).norm() / float32.norm()))
    # What the cache's type costs; it is not the tap's.
    print(options, "from float32:", max(distances))


def hooked(python: str, args: dict, prompts: list, folder: Path) -> list:
    """Rows of each prompt from an engine without specshim."""
    script = Path(__file__).with_name("hooked.py")
    job = {
        "engine_args": args,
        "prompts": prompts,
        "layer_ids": LAYER_IDS,
        "folder": str(folder),
    }
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(SPECSHIM="0", VLLM_ENABLE_V1_MULTIPROCESSING="0"),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    names = sorted(os.listdir(folder), key=lambda name: int(name.split(".")[0]))
    return [load_file(folder / name)["rows"] for name in names]
