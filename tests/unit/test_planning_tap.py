"""The tap route: what it sets, keeps, warns of and refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from plan_values import (
    DENSE,
    GDN,
    LLAMA4,
    SLIDING,
    apply,
    changed,
    environment,
    launcher,
    model,
    served,
    stock_options,
)

from specshim.planning import REMOVE, Request, plan

MANAGER = "disable_hybrid_kv_cache_manager"


def test_launcher_defaults() -> None:
    decision = launcher(DENSE)
    assert decision.route == "tap"
    assert decision.layer_ids == (2, 4, 5, 8)
    assert changed(decision) == {
        "kv_transfer_config": {
            "kv_connector": "TapConnector",
            "kv_connector_module_path": "specshim.tap.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": "/tmp/hidden_states"},
        },
        "additional_config": {"specshim": {"tap": 1, "layer_ids": [2, 4, 5, 8]}},
        "enable_prefix_caching": False,
    }
    assert all(change.why for change in decision.changes)


def test_a_stock_request_is_rerouted_with_its_layers_and_keys() -> None:
    options = stock_options([5, 1, 5], additional_config={"gdn": "triton"})
    options["kv_transfer_config"]["engine_id"] = "mine"
    options["kv_transfer_config"]["kv_connector_extra_config"]["sync"] = True
    after = changed(served(options))
    assert after["speculative_config"] is REMOVE
    assert after["additional_config"] == {
        "gdn": "triton",
        "specshim": {"tap": 1, "layer_ids": [5, 1, 5]},
    }
    assert after["kv_transfer_config"] == {
        "kv_connector": "TapConnector",
        "kv_connector_module_path": "specshim.tap.connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": "/data/hs", "sync": True},
        "engine_id": "mine",
    }


def test_short_speculative_options_go_too() -> None:
    options = stock_options(spec_method="extract_hidden_states", spec_tokens=1)
    after = changed(served(options))
    assert after["spec_method"] is REMOVE
    assert after["spec_tokens"] is REMOVE


@pytest.mark.parametrize(
    "facts", [DENSE, SLIDING, GDN, LLAMA4], ids=lambda m: m.summary
)
@pytest.mark.parametrize("vllm", ["0.17.1", "0.21.0", "0.22.1", "0.32.0"])
def test_a_carried_out_plan_has_nothing_left_to_do(facts: Any, vllm: str) -> None:
    options = stock_options()
    decision = served(options, facts, vllm)
    again = served(apply(options, decision), facts, vllm)
    assert decision.changes
    assert (again.route, again.layer_ids, again.changes) == ("tap", (2, 4), ())
    assert again.refusal is None


def test_vllm_config_objects_are_read_like_dicts() -> None:
    @dataclasses.dataclass
    class KVTransferConfig:
        kv_connector: str = "ExampleHiddenStatesConnector"
        kv_role: str = "kv_both"
        kv_connector_module_path: str | None = None
        engine_id: str = "generated"
        kv_connector_extra_config: dict[str, Any] = dataclasses.field(
            default_factory=dict
        )

    options = stock_options(kv_transfer_config=KVTransferConfig())
    after = changed(served(options))["kv_transfer_config"]
    assert after["kv_connector"] == "TapConnector"
    assert after["kv_role"] == "kv_both"
    assert after["engine_id"] == "generated"
    assert after["kv_connector_extra_config"] == {"shared_storage_path": "/tmp"}


@pytest.mark.parametrize(
    ("facts", "vllm", "expected"),
    [
        (GDN, "0.17.1", False),
        (GDN, "0.21.0", False),
        (GDN, "0.21.1.dev45+g12ab", False),
        (GDN, "0.22.0", None),
        (SLIDING, "0.21.0", False),
        (SLIDING, "0.32.0", None),
        (DENSE, "0.21.0", None),
        (LLAMA4, "0.21.0", None),
    ],
)
def test_the_hybrid_manager_is_switched_on_where_vllm_would_not(
    facts: Any, vllm: str, expected: bool | None
) -> None:
    assert changed(launcher(facts, vllm)).get(MANAGER) is expected


def test_chunked_attention_keeps_the_manager_off_and_says_what_follows() -> None:
    assert "chunked local attention" in launcher(LLAMA4, "0.21.0").warnings[0]
    (later,) = launcher(LLAMA4, "0.22.0").warnings
    assert "keeps its hybrid KV cache manager on" in later


@pytest.mark.parametrize(
    ("facts", "vllm", "expected"),
    [
        (SLIDING, "0.19.1", None),  # vLLM refuses the flag beside KV events
        (SLIDING, "0.21.0", None),
        (GDN, "0.21.0", False),  # vLLM takes the flag, and cannot start without it
        (GDN, "0.22.0", None),
    ],
)
def test_kv_events(facts: Any, vllm: str, expected: bool | None) -> None:
    options = {"kv_events_config": {"enable_kv_cache_events": True}}
    assert changed(launcher(facts, vllm, options=options)).get(MANAGER) is expected


@pytest.mark.parametrize("on", [True, False])
def test_kv_events_report_nothing_without_prefix_caching(on: bool) -> None:
    options = {"kv_events_config": {"enable_kv_cache_events": on}}
    warned = "have nothing to report" in str(launcher(DENSE, options=options).warnings)
    assert warned is on


def test_stateful_hybrid_that_cannot_have_the_manager_is_refused() -> None:
    options = {"kv_events_config": {"enable_kv_cache_events": True}}
    refusal = launcher(GDN, "0.19.1", options=options).refusal
    assert "because kv_events_config is given" in str(refusal)
    tpu = environment("0.21.0", platform="tpu")
    refusal = plan(tpu, GDN, Request(source="launcher")).refusal
    assert "the platform tpu does not support it" in str(refusal)


@pytest.mark.parametrize("vllm", ["0.20.1", "0.32.0"])
def test_a_manager_that_the_user_switched_off(vllm: str) -> None:
    options = {MANAGER: True}
    assert "leave the flag out" in str(launcher(GDN, vllm, options=options).refusal)
    sliding = launcher(SLIDING, vllm, options=options)
    assert MANAGER not in changed(sliding)
    assert "wastes memory" in sliding.warnings[0]
    assert launcher(DENSE, vllm, options=options).warnings == ()


def test_a_manager_that_vllm_would_not_switch_on() -> None:
    refused = launcher(
        LLAMA4,
        "0.32.0",
        options={MANAGER: False},
        variables={"VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "0"},
    )
    assert "vLLM refuses --no-disable" in str(refused.refusal)
    assert launcher(LLAMA4, "0.32.0", options={MANAGER: False}).refusal is None


def test_prefix_caching_is_kept_where_the_user_asked_for_it() -> None:
    decision = launcher(DENSE, options={"enable_prefix_caching": True})
    assert "enable_prefix_caching" not in changed(decision)
    assert "cached prefix fail" in decision.warnings[0]
    off = launcher(DENSE, options={"enable_prefix_caching": False})
    assert "enable_prefix_caching" not in changed(off)


@pytest.mark.parametrize(
    "options",
    [
        {"prefill_context_parallel_size": 2},
        {"enable_dbo": True},
        {"ubatch_size": 2},
        {"kv_sharing_fast_prefill": True},
        {"compilation_config": {"pass_config": {"enable_sp": True}}},
        {"compilation_config": {"pass_config": {"enable_sequence_parallelism": True}}},
        {"compilation_config": {"pass_config": {"fuse_gemm_comms": True}}},
        {"compilation_config": {"pass_config": {"enable_async_tp": True}}},
    ],
    ids=str,
)
def test_what_splits_rows_is_refused(options: dict[str, Any]) -> None:
    assert "cannot record layers under" in str(launcher(DENSE, options=options).refusal)
    assert "cannot record" in str(served(stock_options(**options)).refusal)


def test_tensor_and_data_parallel_are_not_refused() -> None:
    options = {"tensor_parallel_size": 8, "data_parallel_size": 2, "enable_dbo": False}
    assert launcher(DENSE, options=options).refusal is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speculative_config": {"method": "eagle3"}}, "Speculative decoding (eagle3)"),
        ({"spec_method": "ngram"}, "Speculative decoding (ngram)"),
        (
            {"speculative_config": {"model": "d"}},
            "Speculative decoding (a draft model)",
        ),
        ({"kv_transfer_config": {"kv_connector": "Nixl"}}, "names the connector Nixl"),
        ({"kv_transfer_config": "x"}, "--kv-transfer-config is not a JSON object"),
        ({"kv_transfer_config": {"kv_role": "kv_consumer"}}, "kv_role kv_consumer"),
        (
            {"kv_transfer_config": {"kv_connector_extra_config": 3}},
            "kv_connector_extra_config in --kv-transfer-config is not a JSON object",
        ),
        ({"additional_config": [1]}, "additional_config is not a JSON object"),
        ({"additional_config": {"specshim": 1}}, "The key specshim"),
        (
            {"additional_config": {"specshim": {"layer_ids": [1]}}},
            "--additional-config says specshim.layer_ids = [1]",
        ),
        (stock_options([1, 2]), "but the vLLM options name [1, 2]"),
    ],
    ids=str,
)
def test_contradictions_are_refused(options: dict[str, Any], sentence: str) -> None:
    refusal = str(launcher(DENSE, layer_ids=(2, 4), options=options).refusal)
    assert sentence in refusal
    assert refusal.endswith(".")


def test_the_storage_path_is_said_once() -> None:
    options = {
        "kv_transfer_config": {
            "kv_connector_extra_config": {"shared_storage_path": "/a"}
        }
    }
    kv = changed(launcher(DENSE, options=options))["kv_transfer_config"]
    assert kv["kv_connector_extra_config"] == {"shared_storage_path": "/a"}
    refused = launcher(DENSE, options=options, storage_path="/b")
    assert "give the path once" in str(refused.refusal)
    assert launcher(DENSE, options=options, storage_path="/a").refusal is None


@pytest.mark.parametrize("listed", ["", "lora", "Specshim, specshim"])
def test_an_allow_list_without_specshim_is_refused(listed: str) -> None:
    refused = launcher(DENSE, variables={"VLLM_PLUGINS": listed})
    assert "add specshim to that comma-separated list" in str(refused.refusal)
    assert launcher(DENSE, variables={"VLLM_PLUGINS": "a,specshim"}).refusal is None


def test_encoder_decoder_models_are_refused() -> None:
    refused = launcher(model(encoder_decoder=True))
    assert "encoder-decoder" in str(refused.refusal)
