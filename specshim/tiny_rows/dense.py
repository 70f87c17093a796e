"""Dense transformers: attention of every kind, one MLP a layer."""

from __future__ import annotations

from specshim.tiny_rows.base import ROPE, SLIDING_ROPE, SLIDING_WINDOW, VOCAB_SIZE, row

_SLIDING = ["sliding_attention", "full_attention"] * 4

ROWS = (
    row("llama", "LlamaForCausalLM", "llama"),
    row("qwen2", "Qwen2ForCausalLM", "qwen2", use_sliding_window=False),
    row("qwen3", "Qwen3ForCausalLM", "qwen3"),
    row(
        "phi3",
        "Phi3ForCausalLM",
        "phi3",
        original_max_position_embeddings=2048,
        sliding_window=None,
    ),
    row("olmo2", "Olmo2ForCausalLM", "olmo2"),
    row(
        "glm4",
        "Glm4ForCausalLM",
        "glm4",
        attention_bias=True,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.5},
    ),
    row("mistral", "MistralForCausalLM", "mistral", sliding_window=SLIDING_WINDOW),
    row(
        "granite",
        "GraniteForCausalLM",
        "granite",
        embedding_std=0.25,  # times embedding_multiplier
        embedding_multiplier=4.0,
        residual_multiplier=0.5,
        attention_multiplier=0.125,
        logits_scaling=2.0,
    ),
    row(
        "gemma2",
        "Gemma2ForCausalLM",
        "gemma2",
        embedding_std=0.1,  # the model multiplies by sqrt(hidden_size)
        sliding_window=SLIDING_WINDOW,
        query_pre_attn_scalar=32,
        layer_types=_SLIDING,
        tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh",
    ),
    row(
        "gemma3",
        "Gemma3ForCausalLM",
        "gemma3_text",
        embedding_std=0.1,  # the model multiplies by sqrt(hidden_size)
        sliding_window=SLIDING_WINDOW,
        query_pre_attn_scalar=32,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
        # As published, which transformers 4 and 5 read.
        without=("rope_parameters",),
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
    ),
    row(
        "gemma3n",
        "Gemma3nForCausalLM",
        "gemma3n_text",
        embedding_std=0.1,
        sliding_window=SLIDING_WINDOW,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2,
        intermediate_size=[256] * 8,
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=VOCAB_SIZE,
        num_kv_shared_layers=4,
        laurel_rank=16,
        altup_num_inputs=4,
        altup_active_idx=0,
        activation_sparsity_pattern=[0.0] * 8,
        tie_word_embeddings=True,
        rope_parameters=SLIDING_ROPE,
    ),
    row(
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
            **SLIDING_ROPE,
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1000000.0,
                "partial_rotary_factor": 0.25,
            },
        },
    ),
)
