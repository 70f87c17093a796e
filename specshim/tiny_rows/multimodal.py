"""Models with a vision tower: the text model inside is as those without one are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specshim.tiny_rows import dense, experts
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


_TEXT = {row.name: row for row in (*dense.ROWS, *experts.ROWS)}
_TOWER: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_channels": 3,
    "image_size": 64,
    "patch_size": 16,
}


def _around(
    name: str,
    architecture: str,
    model_type: str,
    text: str,
    vision: Mapping[str, Any],
    *,
    over: Mapping[str, Any] | None = None,
    **fields: Any,
) -> TinyModel:
    """Another row's ``text`` model with a tower beside it, asked with text alone.

    ``over`` are fields of the text model that are not as in its own row.
    """
    row = _TEXT[text]
    inner = {k: v for k, v in row.config.items() if k != "architectures"}
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": row.config["dtype"],
        "text_config": {**inner, **(over or {})},
        "vision_config": {**_TOWER, **vision},
        "tie_word_embeddings": row.config["tie_word_embeddings"],
        **{f"{key}_token_id": COMMON[f"{key}_token_id"] for key in _SPECIAL},
        **fields,
    }
    return TinyModel(name, config, row.embedding_std, row.scales)


_SPECIAL = ("bos", "eos", "pad")
_MARKS: Mapping[str, Any] = {
    "boi_token_index": VISION_START,
    "eoi_token_index": VISION_END,
}
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
    _around(
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        "qwen2",
        {
            "model_type": "qwen2_5_vl",
            "depth": 2,
            "num_heads": 4,
            "in_channels": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 56,
            "out_hidden_size": 128,
            "fullatt_block_indexes": [1],
        },
        over={
            "model_type": "qwen2_5_vl_text",
            "rope_parameters": {**ROPE, "mrope_section": [4, 6, 6]},
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    ),
    _around(
        "gemma3_vl",
        "Gemma3ForConditionalGeneration",
        "gemma3",
        "gemma3",
        {"model_type": "siglip_vision_model", "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        **_MARKS,
    ),
    _around(
        "mistral3",
        "Mistral3ForConditionalGeneration",
        "mistral3",
        "mistral",
        {"model_type": "pixtral", "head_dim": 16, "rope_parameters": ROPE},
        image_token_index=IMAGE,
        multimodal_projector_bias=False,
        projector_hidden_act="gelu",
        spatial_merge_size=2,
        vision_feature_layer=-1,
    ),
    _around(
        "llama4_vl",
        "Llama4ForConditionalGeneration",
        "llama4",
        "llama4",
        {
            "model_type": "llama4_vision_model",
            "intermediate_size": 256,
            "vision_output_dim": 64,
            "projector_input_dim": 64,
            "projector_output_dim": 64,
            "pixel_shuffle_ratio": 0.5,
            "multi_modal_projector_bias": False,
            "rope_parameters": ROPE,
        },
        image_token_index=IMAGE,
        **_MARKS,
    ),
)
