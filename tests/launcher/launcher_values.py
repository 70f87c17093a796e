"""Launches of a model of eight layers, without a model folder or vLLM."""

from __future__ import annotations

from typing import Any

from specshim._launch import Launch, build_launch, read_arguments
from specshim.detect import Environment, ModelFacts
from specshim.launch_vllm import parse


def model(kind: str = "full_attention", **fields: Any) -> ModelFacts:
    kinds = (kind, "full_attention") * 4
    values: dict[str, Any] = {
        "name": "MODEL",
        "config_path": "MODEL/config.json",
        "model_type": "made",
        "architectures": ("MadeForCausalLM",),
        "known": True,
        "text_config": "",
        "num_hidden_layers": 8,
        "hidden_size": 64,
        "vocab_size": 128,
        "dtype": "bfloat16",
        "layer_kinds": kinds,
        "groups": (),
        "hybrid": len(set(kinds)) > 1,
        "summary": "dense" if len(set(kinds)) == 1 else "GDN hybrid",
        "moe": False,
        "multimodal": False,
        "encoder_decoder": False,
        "trust_remote_code": False,
    }
    return ModelFacts(**{**values, **fields})


def launch(
    *argv: str, vllm: str = "0.24.0", kind: str = "full_attention", **fields: Any
) -> Launch:
    """What the launcher makes of these arguments."""
    values: dict[str, Any] = {
        "vllm": vllm,
        "vllm_distribution": "vllm",
        "platform": "cuda",
    }
    args, vllm_args = parse(argv)
    environment = Environment(**{**values, **fields})
    return build_launch(
        environment,
        model(kind),
        args,
        read_arguments(environment, vllm_args),
        python="PYTHON",
        environ={"VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "MY_, OUR_"},
    )
