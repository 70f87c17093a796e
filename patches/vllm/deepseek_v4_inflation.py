"""Hidden states inflate every block of models that pack pages of several sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _kv_groups as layout
from specshim.patching import OPEN, Fingerprint, Patch, Target
from specshim.patching.form import form_of

NAMES = ("vllm_config", "kv_cache_spec")


def get_kv_cache_groups(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Group the hidden states apart, in blocks of the size that costs least.

    vLLM groups the model's own layers as it would with the hidden states among them.
    """
    config, specs = layout.arguments(NAMES, args, kwargs)
    hidden, model = layout.hidden_layers(specs), layout.others(specs)
    if not hidden or not model or layout.in_one_group(config, specs):
        return wrapped(*args, **kwargs)
    if layout.grouped_otherwise(config, model):
        return wrapped(*args, **kwargs)
    if not layout.is_packed(config, model):
        return wrapped(*args, **kwargs)
    groups = wrapped(config, model)
    for name, spec in hidden.items():
        groups = [*groups, _cheapest(config, groups, name, spec)]
    return groups


def _cheapest(config: Any, groups: list[Any], name: str, spec: Any) -> Any:
    """The hidden states' group with which a request of full length costs least."""
    sizes = layout.hashed_sizes(groups)
    candidates = {spec.block_size} | {
        size
        for size in range(1, math.lcm(*sizes) + 1)
        if layout.keeps_hashing(size, sizes)
    }
    choices = [_group(name, replace(spec, block_size=n)) for n in sorted(candidates)]
    return min(choices, key=lambda choice: _cost(config, [*groups, choice]))


def _group(name: str, spec: Any) -> Any:
    """A group of that one layer; up to 0.28 all groups of a packing are bundles."""
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs

    if hasattr(layout.planning(), "group_and_unify_kv_cache_specs"):
        spec = UniformTypeKVCacheSpecs(
            block_size=spec.block_size, kv_cache_specs={name: spec}
        )
    return KVCacheGroupSpec([name], spec)


def _cost(config: Any, groups: list[Any]) -> int:
    return layout.block_bytes(config, groups) * layout.request_blocks(config, groups)


def max_memory_usage_bytes_from_groups(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Count whole blocks: before 0.29 the hidden states' page was not among them."""
    names = form_of(wrapped).parameters
    config, groups = layout.arguments(names, args, kwargs)[-2:]
    index = layout.hidden_group(groups)
    if index is None or not layout.is_bundle(groups[index].kv_cache_spec):
        return wrapped(*args, **kwargs)
    if len(groups) == 1:
        return wrapped(*args, **kwargs)
    return _cost(config, groups)


PATCH = Patch(
    id="deepseek-v4-inflation",
    summary="extraction multiplies the KV-cache memory that DeepSeek-V4 needs",
    why=(
        "The engine refuses to start and asks for 581 GiB of KV cache for 8,192 "
        "tokens: the hidden states of 256 tokens, 8 MiB, count as a page of the "
        "model's own latent attention, and every layer's page is packed with it. "
        "From 0.29 the page is apart, but still sets the size of all blocks."
    ),
    see=layout.SEEN_IN_MEMORY,
    upstream=("vllm#53243", "vllm#53074"),
    affects=SpecifierSet(">=0.25.0,<=0.32.0"),
    targets=(
        Target(
            name=layout.GROUPING,
            moved=(layout.MOVED_GROUPING,),
            wrapper=get_kv_cache_groups,
            forms=(
                Fingerprint(
                    parameters=NAMES,
                    contains=("grouped_specs := group_and_unify_kv_cache_specs(",),
                ),
                Fingerprint(
                    parameters=NAMES,
                    contains=("KVCacheGroupSpec([name], spec) for name, spec in",),
                ),
            ),
        ),
        Target(
            name=f"{layout.MODULES[0]}._max_memory_usage_bytes_from_groups",
            moved=(f"{layout.MODULES[1]}._max_memory_usage_bytes_from_groups",),
            wrapper=max_memory_usage_bytes_from_groups,
            forms=(
                Fingerprint(parameters=("vllm_config", "kv_cache_groups")),
                Fingerprint(parameters=("builder", "vllm_config", "kv_cache_groups")),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when=OPEN,
)
