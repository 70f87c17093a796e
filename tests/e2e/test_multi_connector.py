"""The tap beside a connector of vLLM's that saves and loads KV cache."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from serving import load, python_of, run_offline


@pytest.mark.parametrize(
    "release",
    [
        "0.32.0",
        # 0.20.1's ExampleConnector loads to a GPU, whatever the device.
        pytest.param("0.24.0", marks=pytest.mark.extended),
    ],
)
def test_beside_the_example_connector(release, tiny, tmp_path):
    """What that one loads is not computed again: such samples fail, with a reason."""
    model, prompts = tiny("llama"), random_prompts(4, seed=3, low=200, high=300)
    tap = {
        "kv_connector": "TapConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "hs")},
    }
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")},
    }
    args = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 512,
        "enforce_eager": True,
        "max_num_batched_tokens": 512,
        "additional_config": {"specshim": {"layer_ids": list(LAYER_IDS)}},
        "kv_transfer_config": {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": [tap, example]},
        },
    }
    again = [prompts[0], *random_prompts(1, seed=8)]
    calls = [{"prompts": p, "sampling": {"max_tokens": 2}} for p in (prompts, again)]
    first, (loaded, other) = run_offline(python_of(f"vllm-{release}"), args, calls)
    for answer, states in zip(first, reference(model, prompts), strict=True):
        assert_exact(load(answer["hidden_states_path"])["hidden_states"], states)
    assert "from another connector" in loaded["hidden_states_error"]
    states = load(other["hidden_states_path"])["hidden_states"]
    assert_exact(states, reference(model, again[1:])[0])
