"""``vllm.LLM`` with stock arguments: rerouted, in one process, compiled, and cached."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from safetensors.torch import load_file
from serving import load, python_of, run_offline
from stock_request import stock_request


def stock_engine_args(model: Path, storage: Path, **more: object) -> dict:
    return {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 512,
        **stock_request(storage, LAYER_IDS),
        **more,
    }


@pytest.mark.parametrize("release", ["0.20.1", "0.32.0"])
def test_llm_with_stock_arguments_and_everything_in_one_process(
    release, tiny, tmp_path
):
    """No later engine step comes here, so files must be complete all the same."""
    model, prompts = tiny("llama"), random_prompts(5, seed=3)
    args = stock_engine_args(
        model, tmp_path, enforce_eager=True, enable_prompt_embeds=True
    )
    output_tokens = {"kv_transfer_params": {"include_output_tokens": True}}
    plain, outputs, embeds = run_offline(
        python_of(f"vllm-{release}"),
        args,
        [
            {"prompts": prompts, "sampling": {"max_tokens": 1}},
            {
                "prompts": prompts,
                "sampling": {"max_tokens": 4, "extra_args": output_tokens},
            },
            {"prompts": prompts, "sampling": {"max_tokens": 1}, "embed_seed": 7},
        ],
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
    for answer, expected in zip(plain, reference(model, prompts), strict=True):
        assert_exact(load(answer["hidden_states_path"])["hidden_states"], expected)
    whole = [p + a["output_ids"][:-1] for p, a in zip(prompts, outputs, strict=True)]
    for answer, expected in zip(outputs, reference(model, whole), strict=True):
        assert_exact(load(answer["hidden_states_path"])["hidden_states"], expected)
    for answer, prompt in zip(embeds, prompts, strict=True):
        loaded = load(answer["hidden_states_path"])
        assert loaded["token_ids"].tolist() == []
        assert loaded["hidden_states"].shape == (len(prompt), len(LAYER_IDS), 128)
        assert loaded["hidden_states"].abs().sum(dim=2).gt(0).all()
    assert list(tmp_path.glob("*.safetensors")) == []


def test_prefix_caching_that_the_user_asked_for_fails_samples_with_a_reason(
    tiny, tmp_path
):
    model = tiny("llama")
    shared = random_prompts(1, low=300, high=301)[0]
    prompts = [[*shared, 5, 6, 7], [*shared, 8, 9]]
    args = stock_engine_args(
        model, tmp_path, enforce_eager=True, enable_prefix_caching=True
    )
    calls = [{"prompts": [p], "sampling": {"max_tokens": 1}} for p in prompts]
    (first,), (second,) = run_offline(python_of("vllm-0.32.0"), args, calls)
    expected = reference(model, prompts[:1])[0]
    assert_exact(load(first["hidden_states_path"])["hidden_states"], expected)
    assert second["hidden_states_path"].startswith("/dev/null/no hidden states: ")
    assert "prefix cache" in second["hidden_states_error"]
    assert sorted(tmp_path.iterdir()) == []


def test_a_graph_compiled_without_taps_is_not_reused(tiny, tmp_path):
    """Plain, tapped, tapped again from the cache: one compile cache for all three."""
    python = python_of("vllm-0.32.0")
    model, prompts = tiny("llama"), random_prompts(4, seed=5)
    calls = [{"prompts": prompts, "sampling": {"max_tokens": 2}}]
    cache = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    plain = {"model": str(model), "dtype": "float32", "max_model_len": 512}
    (answers,) = run_offline(python, plain, calls, **cache)
    assert all("hidden_states_path" not in answer for answer in answers)
    expected = reference(model, prompts)
    for _ in range(2):
        args = stock_engine_args(model, tmp_path / "hs")
        (answers,) = run_offline(python, args, calls, **cache)
        for answer, states in zip(answers, expected, strict=True):
            loaded = load_file(answer["hidden_states_path"])
            assert_exact(loaded["hidden_states"], states)
