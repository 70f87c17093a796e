"""A vision-language model does not start: its text config became a plain dict."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Hand the text config over as the object that it is in the model's config."""
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    model: Any = bound.arguments.get("model")
    if hasattr(model, "get_text_config"):
        text = model.get_text_config()
        if text is not model:
            bound.arguments.setdefault("kwargs", {})["text_config"] = text
    return wrapped(*bound.args, **bound.kwargs)


PATCH = Patch(
    id="vlm-text-config",
    summary="a vision-language model does not start",
    why=(
        "The server of a model with a text_config (Qwen2.5-VL and many others) stops "
        "with a ValidationError: its text_config has no num_attention_heads. The "
        "draft model's config is made of plain dicts, and vLLM reads attributes."
    ),
    see=(
        "The server stops at start, and its log has 'The text_config extracted from "
        "the model config'. With the patch it comes up."
    ),
    upstream=("vllm#39017", "vllm#38987"),
    affects=SpecifierSet(">=0.17.0,<0.20.0"),
    targets=(
        Target(
            name=(
                "vllm.transformers_utils.configs.extract_hidden_states"
                ".ExtractHiddenStatesConfig.__init__"
            ),
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=("self", "model", "method", "kwargs"),
                    contains=("combined = {**model_dict, **kwargs}",),
                    lacks=("text_config",),
                ),
            ),
            fixed=Fingerprint(
                parameters=("self", "model", "method"),
                contains=("get_text_config()", 'combined["text_config"]'),
            ),
        ),
    ),
    processes=("frontend",),
    remove_when="vllm>=0.20.0",
)
