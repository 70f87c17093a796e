"""An FP8 KV cache stops the server at start, in the layer of the hidden states."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target

PLAIN = ("auto", "bfloat16", "float16")  # what the layer accepts


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Hidden states keep the model's dtype, whatever the attention layers' cache."""
    from vllm.config import get_current_vllm_config

    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    given = bound.arguments.get("cache_config")
    config = given or get_current_vllm_config().cache_config
    if config is not None and config.cache_dtype not in PLAIN:
        bound.arguments["cache_config"] = replace(config, cache_dtype="auto")
    return wrapped(*bound.args, **bound.kwargs)


PATCH = Patch(
    id="fp8-kv-crash",
    summary="--kv-cache-dtype fp8 stops the server at start",
    why=(
        "The server stops with AssertionError: CacheOnlyAttentionLayer doesn't "
        "support a quantized KV cache. The hidden states' cache takes the dtype of "
        "the attention layers' cache, though it holds no keys and values."
    ),
    see=(
        "With --kv-cache-dtype fp8 the server stops at start, and its log has the "
        "AssertionError about CacheOnlyAttentionLayer. With the patch it comes up, "
        "and samples have the model's dtype."
    ),
    upstream=("vllm#39160",),
    affects=SpecifierSet(">=0.17.0,<0.20.0"),
    targets=(
        Target(
            name=(
                "vllm.model_executor.models.extract_hidden_states"
                ".CacheOnlyAttentionLayer.__init__"
            ),
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=("self", "num_heads", "head_size", "cache_config"),
                    contains=('kv_cache_dtype in ["auto", "bfloat16", "float16"]',),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.20.0",
)
