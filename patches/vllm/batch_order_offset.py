"""A prompt that joins running requests is saved with their rows.

The correction is that of prefix-cache-cross-request, which says why. To run without
it, switch off both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Patch

from . import prefix_cache_cross_request as by_block_table


def save_kv_layer(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Worker: a block table holds a prompt's slots wherever it lies in the batch."""
    return by_block_table.save_kv_layer(wrapped, instance, args, kwargs)


BUILD, SAVE = by_block_table.TARGETS

PATCH = Patch(
    id="batch-order-offset",
    summary="a prompt that joins running requests is saved with rows of theirs",
    why=(
        "With max_tokens above 1, states belong to other requests: the connector "
        "takes the prompts' slots from the start of the batch, where vLLM keeps the "
        "requests that were running before."
    ),
    see=(
        "Send a prompt alone, and again while requests with a larger max_tokens are "
        "running: hidden_states of the two files differ. With the patch they agree up "
        "to rounding."
    ),
    upstream=("vllm#43805",),
    affects=SpecifierSet(">=0.22.0,<0.24.0"),
    targets=(replace(SAVE, wrapper=save_kv_layer), BUILD),
    processes=("engine core", "worker"),
    remove_when="vllm>=0.24.0",
)
