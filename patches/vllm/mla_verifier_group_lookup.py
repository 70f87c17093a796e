"""The connector does not find the hidden states of models with packed pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _kv_groups as layout
from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target


def find_cache_kv_group_id(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Look for the layer itself before looking for the spec of its group."""
    (config,) = layout.arguments(("kv_cache_config",), args, kwargs)
    found = layout.holder(config.kv_cache_groups) if config is not None else None
    return wrapped(*args, **kwargs) if found is None else found


PATCH = Patch(
    id="mla-verifier-group-lookup",
    summary="the connector refuses DeepSeek-V4: it does not find the hidden states",
    why=(
        "Workers stop with 'Could not uniquely identify the extract-hidden-states KV "
        "cache group': on models that pack pages of several sizes the group's spec "
        "is a bundle of its layers' specs, and the connector only looks at groups "
        "whose own spec is that of hidden states."
    ),
    see=(
        "The log of the start has 'Could not uniquely identify the extract-hidden-"
        "states KV cache group'. With the patch the connector comes up."
    ),
    upstream=("vllm#53243", "vllm#53074"),
    affects=SpecifierSet(">=0.25.0,<0.29.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}._find_cache_kv_group_id",
            wrapper=find_cache_kv_group_id,
            forms=(
                Fingerprint(
                    parameters=("cls", "kv_cache_config"),
                    contains=("isinstance(group.kv_cache_spec, HiddenStateCacheSpec)",),
                ),
            ),
        ),
    ),
    processes=("engine core", "worker"),
    remove_when="vllm>=0.29.0",
)
