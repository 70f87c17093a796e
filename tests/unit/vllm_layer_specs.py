"""Run by a vLLM environment's python: builds tiny models, prints their layers' caches.

Takes a folder and, optionally, names of families (all without). For each family it
writes FOLDER/NAME/config.json as transformers saves it, and prints one JSON object:
name -> what vLLM says, or why it can't say.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 8,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    **MOE,
}
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64}

# name: model type of transformers, architecture of vLLM, fields
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", {}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", {}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", {"num_experts": 4, **MOE}),
    "glm4": ("glm4", "Glm4ForCausalLM", {}),
    "granite": ("granite", "GraniteForCausalLM", {}),
    "mistral": ("mistral", "MistralForCausalLM", {"sliding_window": 64}),
    "mistral_null": ("mistral", "MistralForCausalLM", {"sliding_window": None}),
    "phi3": ("phi3", "Phi3ForCausalLM", {"sliding_window": 64}),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", {"sliding_window": 64}),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", {"sliding_window": 64}),
    "gemma3n": (
        "gemma3n_text",
        "Gemma3nForCausalLM",
        {"sliding_window": 64, "num_kv_shared_layers": 0, "intermediate_size": 256},
    ),
    "gemma4": (
        "gemma4_text",
        "Gemma4ForCausalLM",
        {"sliding_window": 64, "global_head_dim": 128},
    ),
    "gpt_oss": (
        "gpt_oss",
        "GptOssForCausalLM",
        {"sliding_window": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "cohere2": ("cohere2", "Cohere2ForCausalLM", {"sliding_window": 64}),
    "olmo3": ("olmo3", "Olmo3ForCausalLM", {"sliding_window": 64}),
    "exaone4": ("exaone4", "Exaone4ForCausalLM", {"sliding_window": 64}),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", {}),
    "llama4": (
        "llama4_text",
        "Llama4ForCausalLM",
        {
            "attention_chunk_size": 128,
            "num_local_experts": 2,
            "intermediate_size_mlp": 256,
        },
    ),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2ForCausalLM", LATENT),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3ForCausalLM", LATENT),
    "qwen3_next": (
        "qwen3_next",
        "Qwen3NextForCausalLM",
        {"num_experts": 4, "shared_expert_intermediate_size": 64, **MOE},
    ),
    "qwen3_5": ("qwen3_5_text", "Qwen3_5ForCausalLM", {}),
    "olmo_hybrid": ("olmo_hybrid", "OlmoHybridForCausalLM", {}),
    "lfm2": (
        "lfm2",
        "Lfm2ForCausalLM",
        {"full_attn_idxs": [2, 5], "conv_dim": 256, "block_dim": 256},
    ),
    "falcon_h1": (
        "falcon_h1",
        "FalconH1ForCausalLM",
        {**MAMBA, "mamba_d_ssm": 512, "mamba_n_groups": 1},
    ),
    "granite_hybrid": (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {
            **MAMBA,
            "layer_types": ["mamba", "attention"] * 4,
            "num_local_experts": 0,
            "shared_intermediate_size": 256,
            "mamba_expand": 2,
        },
    ),
    "granite_attention_only": (
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        {
            **MAMBA,
            "layer_types": ["attention"] * 8,
            "num_local_experts": 0,
            "shared_intermediate_size": 256,
            "mamba_expand": 2,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        "NemotronHForCausalLM",
        {
            "hybrid_override_pattern": "M-M*-M*-",
            "mamba_num_heads": 8,
            "mamba_head_dim": 64,
            "ssm_state_size": 64,
            "n_groups": 1,
        },
    ),
    "zamba2": (
        "zamba2",
        "Zamba2ForCausalLM",
        {
            "layers_block_type": ["mamba", "mamba", "hybrid", "mamba"] * 2,
            "n_mamba_heads": 8,
            "mamba_headdim": 64,
            "mamba_d_state": 64,
            "num_mem_blocks": 1,
            "head_dim": 128,
        },
    ),
    "jamba": (
        "jamba",
        "JambaForCausalLM",
        {"num_experts": 1, "num_experts_per_tok": 1, "attn_layer_offset": 4},
    ),
    "mamba": ("mamba", "MambaForCausalLM", {}),
    "mamba2": (
        "mamba2",
        "Mamba2ForCausalLM",
        {"num_heads": 8, "head_dim": 64, "expand": 2, "n_groups": 1, "state_size": 64},
    ),
}


def write_config(folder: Path, kind: str, architecture: str, fields: Any) -> None:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind](**{**SIZES, **fields})
    config.architectures = [architecture]
    folder.mkdir(parents=True)
    config.save_pretrained(folder)


def ask_vllm(folder: Path) -> dict[str, Any]:
    """vLLM's own words: is_hybrid, use_mla, and the cache spec of each layer."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=256,
    )
    config = arguments.create_engine_config()
    model = config.model_config
    with set_current_vllm_config(config), torch.device("meta"):
        initialize_model(config)
        layers: dict[int, set[str]] = {}
        counts: dict[str, int] = {}
        for name, layer in config.compilation_config.static_forward_context.items():
            found = re.search(r"layers\.(\d+)\.", f"{name}.")
            spec = getattr(layer, "get_kv_cache_spec", lambda _: None)(config)
            if spec is not None:
                said = type(spec).__name__
                if backend := getattr(spec, "mamba_type", None):
                    said = str(getattr(backend, "value", backend)).rpartition(".")[2]
                counts[said] = counts.get(said, 0) + 1
                if found:
                    layers.setdefault(int(found[1]), set()).add(said)
    return {
        "is_hybrid": model.is_hybrid,
        "is_attention_free": model.is_attention_free,
        "use_mla": model.use_mla,
        "counts": counts,
        "layers": {index: sorted(said) for index, said in sorted(layers.items())},
    }


def main(folder: Path, names: list[str]) -> None:
    import vllm.distributed as distributed
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        distributed.init_distributed_environment(
            1, 0, f"file://{tempfile.mktemp()}", 0, "gloo"
        )
        distributed.initialize_model_parallel()
    answers: dict[str, Any] = {}
    for name, (kind, architecture, fields) in FAMILIES.items():
        if names and name not in names:
            continue
        try:
            write_config(folder / name, kind, architecture, fields)
            answers[name] = ask_vllm(folder / name)
        except Exception as error:  # whatever this build cannot do is skipped
            answers[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    print("ANSWERS" + json.dumps(answers))


if __name__ == "__main__":
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(Path(sys.argv[1]), sys.argv[2:])
