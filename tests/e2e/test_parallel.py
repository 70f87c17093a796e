"""Several workers or engines: every sample is what one of them would have given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from serving import load, python_of, run_offline, serve
from stock_request import stock_request

pytestmark = pytest.mark.extended

TWO_CORES = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def offline(
    model: Path, folder: Path, prompts: Sequence[list[int]], **options: Any
) -> list[Any]:
    """States of each prompt by ``vllm.LLM`` of the newest release."""
    args = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_batched_tokens": 64,
        "enforce_eager": True,
        **stock_request(folder, LAYER_IDS),
        **options,
    }
    calls = [{"prompts": prompts, "sampling": {"max_tokens": 3}}]
    sizes = [v for name, v in args.items() if name.endswith("_parallel_size")]
    cores = "|".join(str(rank % 2) for rank in range(math.prod(sizes)))
    (answers,) = run_offline(
        python_of("vllm-0.32.0"), args, calls, VLLM_CPU_OMP_THREADS_BIND=cores
    )
    return [load(answer["hidden_states_path"])["hidden_states"] for answer in answers]


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("llama", {"tensor_parallel_size": 2}),
        ("gemma3", {"tensor_parallel_size": 2}),
        # Expert parallelism ends in a segmentation fault of vLLM's CPU kernel (0.32).
        ("qwen3_moe", {"tensor_parallel_size": 2}),
        ("llama", {"tensor_parallel_size": 2, "enforce_eager": False}),
        ("gemma3", {"pipeline_parallel_size": 2, "enforce_eager": False}),
        ("llama", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    ],
    ids=str,
)
def test_several_workers(architecture, options, tiny, tmp_path):
    model, prompts = tiny(architecture), random_prompts(8, seed=1)
    found = offline(model, tmp_path, prompts, **options)
    for states, expected in zip(found, reference(model, prompts), strict=True):
        assert_exact(states, expected)


def test_two_engines_behind_one_server(tiny, tmp_path):
    model, prompts = tiny("llama"), random_prompts(24, seed=6)
    command = [
        *(python_of("vllm-0.32.0"), "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(tmp_path / "hs")),
        *("--target-layer-ids", *map(str, LAYER_IDS[:-1])),
        *("--", "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
        *("--max-num-batched-tokens", "64", "--data-parallel-size", "2"),
    ]
    with serve(command, model, tmp_path, **TWO_CORES) as server:
        answers = server.complete_all(prompts, 12)
        several = server.complete(prompts[0], n=2, temperature=1)
    for answer, expected in zip(answers, reference(model, prompts), strict=True):
        states = load(answer["hidden_states_path"])["hidden_states"]
        assert_exact(states, expected)
    assert "ask for n = 1" in several["hidden_states_error"]
