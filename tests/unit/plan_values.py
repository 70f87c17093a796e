"""Models, environments and requests for the planning tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

from specshim.detect import Environment, LayerGroup, ModelFacts
from specshim.planning import REMOVE, LaunchPlan, Request, plan


def model(*kinds: str, summary: str = "", **fields: Any) -> ModelFacts:
    """A model with these layer kinds; without any, eight full-attention layers."""
    kinds = kinds or ("full_attention",) * 8
    values: dict[str, Any] = {
        "name": "MODEL",
        "config_path": "MODEL/config.json",
        "model_type": "made",
        "architectures": ("MadeForCausalLM",),
        "known": True,
        "text_config": "",
        "num_hidden_layers": len(kinds),
        "hidden_size": 64,
        "vocab_size": 128,
        "dtype": "bfloat16",
        "layer_kinds": kinds,
        "groups": tuple(
            LayerGroup(kind, count, "layer_types")
            for kind, count in Counter(kinds).items()
        ),
        "hybrid": len(set(kinds)) > 1,
        "summary": summary or ("hybrid" if len(set(kinds)) > 1 else "dense"),
        "moe": False,
        "multimodal": False,
        "encoder_decoder": False,
        "trust_remote_code": False,
    }
    return ModelFacts(**{**values, **fields})


DENSE = model()
SLIDING = model(
    *("sliding_attention", "full_attention") * 4, summary="sliding-window hybrid"
)
GDN = model(*("gated_delta_net", "full_attention") * 4, summary="GDN hybrid")
LLAMA4 = model(
    *("chunked_attention", "full_attention") * 4, summary="chunked-attention hybrid"
)


def environment(vllm: str | None = "0.24.0", **fields: Any) -> Environment:
    values: dict[str, Any] = {"vllm": vllm, "vllm_distribution": "vllm"}
    return Environment(**{**values, "platform": "cuda", **fields})


def launcher(facts: ModelFacts, vllm: str = "0.24.0", **fields: Any) -> LaunchPlan:
    """The plan of the launcher, for vLLM options in ``options``."""
    variables = fields.pop("variables", {})
    connectors = fields.pop("hs_connectors", None)
    installed = environment(vllm, variables=variables, hs_connectors=connectors)
    return plan(installed, facts, Request(source="launcher", **fields))


def stock_options(ids: Any = (2, 4), **options: Any) -> dict[str, Any]:
    """The options of a plain ``vllm serve`` that extracts."""
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {
                "hf_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}
            },
        },
        "kv_transfer_config": {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": "/data/hs"},
        },
        **options,
    }


def served(
    options: dict[str, Any], facts: ModelFacts = DENSE, vllm: str = "0.24.0", **env: Any
) -> LaunchPlan:
    """The plan of the plugin, for these EngineArgs options."""
    request = Request(source="engine_args", options=options)
    return plan(environment(vllm, **env), facts, request)


def apply(options: dict[str, Any], decision: LaunchPlan) -> dict[str, Any]:
    """The options with the plan's changes made."""
    after = dict(options)
    for change in decision.changes:
        if change.value is REMOVE:
            after.pop(change.option, None)
        else:
            after[change.option] = change.value
    return after


def changed(decision: LaunchPlan) -> dict[str, Any]:
    assert decision.refusal is None, decision.refusal
    return {change.option: change.value for change in decision.changes}
