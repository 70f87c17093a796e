"""Models with a vision tower: the text model inside is as those without one are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specshim.tiny_rows.base import (
    COMMON,
    GATED_DELTA_NET,
    IMAGE,
    ROPE,
    VIDEO,
    VISION_END,
    VISION_START,
    TinyModel,
)

_QWEN_VISION: Mapping[str, Any] = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 64,
    "hidden_act": "gelu_pytorch_tanh",
}


def _qwen(
    name: str,
    architecture: str,
    model_type: str,
    text: Mapping[str, Any],
    vision: Mapping[str, Any],
) -> TinyModel:
    """A Qwen model that takes images; its text model's fields are in ``text``."""
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": text.get("dtype", COMMON["dtype"]),
        "text_config": {**COMMON, "model_type": f"{model_type}_text", **text},
        "vision_config": {
            **_QWEN_VISION,
            "model_type": f"{model_type}_vision",
            **vision,
        },
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
        "tie_word_embeddings": False,
        **{key: COMMON[key] for key in ("bos_token_id", "eos_token_id")},
        "pad_token_id": COMMON["pad_token_id"],
    }
    return TinyModel(name, config, takes_images=True)


_MROPE = {**ROPE, "mrope_section": [6, 5, 5], "mrope_interleaved": True}

ROWS = (
    _qwen(
        "qwen3_5_vl",
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5",
        {
            **GATED_DELTA_NET,
            "head_dim": 64,
            "rope_parameters": {
                **ROPE,
                "partial_rotary_factor": 0.5,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
        },
        {},
    ),
    _qwen(
        "qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl",
        {"rope_parameters": _MROPE},
        {"deepstack_visual_indexes": [0, 2]},
    ),
)
