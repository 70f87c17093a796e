"""The table of tiny models: one row per architecture, written as published configs are.

Every field a release might default differently is spelled out, so that all
releases of transformers and vLLM build the same model from the same row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORDS = 508
UNK, BOS, EOS, PAD = range(WORDS, WORDS + 4)
VOCAB_SIZE = WORDS + 4
LAYERS = 8
SLIDING_WINDOW = 32


@dataclass(frozen=True)
class TinyModel:
    """One row: the name it goes by, its config.json, and how its weights are drawn.

    ``scales`` multiplies the weights whose names hold one of its keys.
    """

    name: str
    config: Mapping[str, Any]
    embedding_std: float = 1.0
    scales: Mapping[str, float] = field(default_factory=dict)


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

_COMMON: Mapping[str, Any] = {
    "dtype": "float32",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rope_parameters": _ROPE,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}

_GATED_DELTA_NET: Mapping[str, Any] = {
    "dtype": "bfloat16",  # vLLM on the CPU takes no other, nor other head sizes
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25},
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}

_SLIDING_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
}


def _row(
    name: str,
    architecture: str,
    model_type: str,
    *,
    embedding_std: float = 1.0,
    scales: Mapping[str, float] | None = None,
    **fields: Any,
) -> TinyModel:
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        **_COMMON,
        **fields,
    }
    return TinyModel(name, config, embedding_std, scales or {})


_ROWS = (
    _row("llama", "LlamaForCausalLM", "llama"),
    _row("qwen3", "Qwen3ForCausalLM", "qwen3"),
    _row(
        "gemma3",
        "Gemma3ForCausalLM",
        "gemma3_text",
        embedding_std=0.1,  # the model multiplies by sqrt(hidden_size)
        sliding_window=SLIDING_WINDOW,
        query_pre_attn_scalar=32,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
        rope_parameters=_SLIDING_ROPE,
    ),
    _row(
        "gemma4",
        "Gemma4ForCausalLM",
        "gemma4_text",
        scales={"q_norm": 0.2},  # scores are not divided by sqrt(head_dim)
        embedding_std=0.1,  # the model multiplies by sqrt(hidden_size)
        sliding_window=SLIDING_WINDOW,
        global_head_dim=64,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=VOCAB_SIZE,
        num_kv_shared_layers=0,
        rope_parameters={
            **_SLIDING_ROPE,
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1000000.0,
                "partial_rotary_factor": 0.25,
            },
        },
    ),
    _row("qwen3_5", "Qwen3_5ForCausalLM", "qwen3_5_text", **_GATED_DELTA_NET),
    _row(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        "qwen3_next",
        **_GATED_DELTA_NET,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
    _row(
        "granite4",
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        embedding_std=0.25,  # times embedding_multiplier
        layer_types=(["mamba"] * 3 + ["attention"]) * 2,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=256,
        position_embedding_type="nope",
        embedding_multiplier=4.0,
        residual_multiplier=0.5,
        attention_multiplier=0.125,
        logits_scaling=2.0,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_n_groups=1,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=64,
        mamba_conv_bias=True,
        mamba_proj_bias=False,
    ),
    _row(
        "lfm2",
        "Lfm2ForCausalLM",
        "lfm2",
        layer_types=(["conv", "conv", "full_attention", "conv"]) * 2,
        norm_eps=1e-5,
        conv_L_cache=3,
        conv_bias=False,
        block_auto_adjust_ff_dim=False,
        block_dim=128,
        block_ff_dim=256,
    ),
    _row(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        num_key_value_heads=4,
        head_dim=64,
        q_lora_rank=64,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        moe_intermediate_size=64,
        first_k_dense_replace=1,
        moe_layer_freq=1,
        num_nextn_predict_layers=0,
    ),
)

ARCHITECTURES: Mapping[str, TinyModel] = {row.name: row for row in _ROWS}
