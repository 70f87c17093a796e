"""What every row of the table of tiny models is made of.

Every field a release might default differently is spelled out, so that all
releases of transformers and vLLM build the same model from the same row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WORDS = 508
UNK, BOS, EOS, PAD = range(WORDS, WORDS + 4)
VOCAB_SIZE = WORDS + 4
# Of the words, those that models with a vision tower take as marks around an image.
IMAGE, VIDEO, VISION_START, VISION_END = range(WORDS - 4, WORDS)
LAYERS = 8
SLIDING_WINDOW = 32


@dataclass(frozen=True)
class TinyModel:
    """One row: the name it goes by, its config.json, and how its weights are drawn.

    ``scales`` multiplies the weights whose names hold one of its keys. ``builder`` is
    the class in transformers where vLLM gives the architecture another name. With
    ``takes_images`` there is a processor beside the tokenizer.
    """

    name: str
    config: Mapping[str, Any]
    embedding_std: float = 1.0
    scales: Mapping[str, float] = field(default_factory=dict)
    builder: str = ""
    takes_images: bool = False


ROPE = {"rope_type": "default", "rope_theta": 10000.0}

COMMON: Mapping[str, Any] = {
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
    "rope_parameters": ROPE,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}

GATED_DELTA_NET: Mapping[str, Any] = {
    "dtype": "bfloat16",  # vLLM on the CPU takes no other, nor other head sizes
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25},
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}

SLIDING_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
}


def row(
    name: str,
    architecture: str,
    model_type: str,
    *,
    embedding_std: float = 1.0,
    scales: Mapping[str, float] | None = None,
    without: Sequence[str] = (),
    builder: str = "",
    **fields: Any,
) -> TinyModel:
    """A row; ``without`` names common fields that this config does not have."""
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        **{name: value for name, value in COMMON.items() if name not in without},
        **fields,
    }
    return TinyModel(name, config, embedding_std, scales or {}, builder)
