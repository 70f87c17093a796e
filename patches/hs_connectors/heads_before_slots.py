"""Mooncake samples of the wrong rows with vLLM 0.29 and newer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target


def extract_from_kv_cache(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Read the cache with vLLM's own reader, which knows its layout in each release."""
    return _stock().extract_from_kv_cache(*args, **kwargs)


def get_required_kvcache_layout(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Ask for the layout that vLLM's own connector asks for; its names changed too."""
    stock = _stock().ExampleHiddenStatesConnector
    return stock.get_required_kvcache_layout(*args, **kwargs)


def _stock() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1 import (
        example_hidden_states_connector,
    )

    return example_hidden_states_connector


MODULE = "hs_connectors.mooncake_hidden_states_connector"

PATCH = Patch(
    id="heads-before-slots",
    summary="the Mooncake connector of 0.7 reads the cache along the wrong axis",
    why=(
        "With vLLM 0.29 or newer the Mooncake connector of hs_connectors 0.7 stores "
        "wrong rows or stops with an index error: vLLM put the heads before the slots "
        "of a block, and the connector's own reader takes the heads for slots."
    ),
    see=(
        "With vLLM 0.29 or newer, the first sample stops with an IndexError in "
        "extract_from_kv_cache, or its rows are not those of the same prompt with the "
        "file connector. With the patch they are."
    ),
    upstream=("speculators#1072",),
    affects=SpecifierSet(">=0.7.0,<0.8.0"),
    targets=(
        Target(
            name=f"{MODULE}.extract_from_kv_cache",
            wrapper=extract_from_kv_cache,
            forms=(
                Fingerprint(
                    parameters=("kv_cache", "slot_mapping", "num_tokens"),
                    contains=("block_size = kv_cache.shape[1]",),
                ),
            ),
        ),
        Target(
            name=f"{MODULE}.MooncakeHiddenStatesConnector.get_required_kvcache_layout",
            wrapper=get_required_kvcache_layout,
            forms=(
                Fingerprint(
                    parameters=("cls", "vllm_config"), contains=('return "NHD"',)
                ),
            ),
        ),
    ),
    processes=("worker",),
    rung="replace method",
    why_not_lower="Both functions spell the layout out; nothing in them can be kept.",
    remove_when="hs_connectors>=0.8.0",
)
