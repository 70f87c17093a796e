"""What the patches of vLLM's KV-cache grouping share: the hidden-states layer's place.

vLLM's block pool hands out blocks of one size, each to one group of layers at a time.
The layer that keeps hidden states is a group of its own wherever the model mixes
kinds of layers; its tokens are wide, so few of them fit into a block.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from specshim import imports

Specs = dict[str, Any]  # by layer name, as vLLM passes them

MODULES = ("vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning")
"""Where vLLM groups layers: up to 0.32, and later."""
GROUPING, MOVED_GROUPING = (f"{module}.get_kv_cache_groups" for module in MODULES)

SEEN_IN_MEMORY = (
    "At start the log says for how many requests of full length the KV cache is "
    "enough (Maximum concurrency), or how many GiB one of them needs. Start once "
    "more without extraction: with the patch a request needs more by about its "
    "own states, max_model_len x layers x hidden size, and without it by many "
    "times that."
)
"""How a user sees that hidden states are billed too high, or no longer."""


def planning() -> ModuleType:
    """The module in which the installed vLLM groups layers and counts their bytes."""
    found = [module for module in MODULES if imports.exists(module)]
    return import_module(found[-1])


def arguments(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The values of a call's parameters ``names``, its first ones, in order."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return tuple(given[name] for name in names)


def hidden_layers(specs: Mapping[str, Any]) -> Specs:
    """Those of ``specs`` that keep hidden states; empty in ordinary serving."""
    from vllm.v1.kv_cache_interface import HiddenStateCacheSpec

    return {n: s for n, s in specs.items() if isinstance(s, HiddenStateCacheSpec)}


def others(specs: Mapping[str, Any]) -> Specs:
    """The model's own layers."""
    hidden = hidden_layers(specs)
    return {n: s for n, s in specs.items() if n not in hidden}


def in_one_group(config: Any, specs: Specs) -> bool:
    """Whether vLLM puts all layers, hidden states included, into a single group."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    return (
        bool(config.scheduler_config.disable_hybrid_kv_cache_manager)
        or planning().is_kv_cache_spec_uniform(specs)
        or UniformTypeKVCacheSpecs.is_uniform_type(specs)
    )


def grouped_otherwise(config: Any, model: Specs) -> bool:
    """Whether vLLM may group ``model`` in a way of its own without hidden states.

    That is so with blocks in the host's memory, from 0.30 on, and for GLM-5-Next in
    0.30 and 0.31: recurrent layers, pools of keys, and else latent attention alone, of
    which some layers compress.
    """
    from vllm.v1.kv_cache_interface import MambaSpec, MLAAttentionSpec

    attention = getattr(config, "attention_config", None)
    if getattr(attention, "hisparse_config", None) is not None:
        return True
    if not hasattr(planning(), "_get_kv_cache_groups_glm5_next"):
        return False
    apart = (MambaSpec, planning().KpoolTailSpec)
    latent = [spec for spec in model.values() if not isinstance(spec, apart)]
    return (
        any(isinstance(spec, MambaSpec) for spec in model.values())
        and all(type(spec) is MLAAttentionSpec for spec in latent)
        and any(spec.tokens_per_state > 1 for spec in latent)
    )


def is_packed(config: Any, model: Specs) -> bool:
    """Whether vLLM packs pages of several sizes into a block, so that none need agree.

    ``model`` are the specs of the model's own layers.
    """
    if hasattr(planning(), "group_and_unify_kv_cache_specs"):  # up to 0.28
        return planning().group_and_unify_kv_cache_specs(model) is not None
    if len({spec.page_size_bytes for spec in model.values()}) == 1:
        return False
    resolved = config.cache_config.get_resolved_kv_cache_layout()
    return bool(resolved.is_block_outermost)


def is_bundle(spec: Any) -> bool:
    """Whether a group's layers keep their own specs, as in packed layouts."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    return isinstance(spec, UniformTypeKVCacheSpecs)


def hidden_group(groups: Sequence[Any]) -> int | None:
    """Index of the group that holds hidden states alone; None where there is none.

    In packed layouts of older releases it is a bundle of that one layer.
    """
    for index, group in enumerate(groups):
        spec = group.kv_cache_spec
        members = spec.kv_cache_specs if is_bundle(spec) else {"": spec}
        if hidden_layers(members) and len(group.layer_names) == 1:
            return index
    return None


def holder(groups: Sequence[Any]) -> int | None:
    """Index of the group with the hidden states' layer, by the layer's name.

    That is the same on both sides, whereas the scheduler sees one spec for a bundle.
    None where no group, or more than one, has such a layer.
    """
    found = [
        index
        for index, group in enumerate(groups)
        if any("cache_only_layers" in name for name in group.layer_names)
    ]
    return found[0] if len(found) == 1 else None


def token_bytes(spec: Any) -> int:
    """Bytes of one token's hidden states: captured layers x hidden size x item."""
    return int(spec.num_kv_heads * spec.head_size * spec.dtype.itemsize)


def hashed_sizes(groups: Sequence[Any]) -> list[int]:
    """Tokens per block of the groups whose blocks prefix caching may look up."""
    from vllm.v1.kv_cache_interface import MambaSpec

    specs = [first_spec(group) for group in groups]
    return [
        spec.block_size
        for spec in specs
        if not (isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "none")
    ]


def keeps_hashing(size: int, sizes: Sequence[int]) -> bool:
    """Whether a group of ``size`` tokens per block leaves prefix caching its grain.

    vLLM hashes at the greatest common divisor of all groups' sizes, and finds
    prefixes at their least common multiple. The multiple must stay; the divisor may
    become ``size`` itself, so that hashing is finer, but nothing smaller.
    """
    if not sizes:
        return True
    common = math.gcd(*sizes)
    return math.lcm(*sizes) % size == 0 and (size % common == 0 or common % size == 0)


def block_bytes(config: Any, groups: Sequence[Any]) -> int:
    """Bytes of one block of the pool, which is as wide as the widest group."""
    count = planning()._pool_bytes_per_block
    takes_config = "vllm_config" in inspect.signature(count).parameters
    return int(count(config, groups) if takes_config else count(groups))


def request_blocks(config: Any, groups: Sequence[Any]) -> int:
    """Blocks of the pool that a request of the full model length takes."""
    total = 0
    for group in groups:
        spec = group.kv_cache_spec
        pages = spec.max_memory_usage_bytes(config) / spec.page_size_bytes
        total += math.ceil(pages)
    return total


def table_bytes(config: Any, groups: Sequence[Any]) -> int:
    """Bytes on the device of the groups' block tables, which no budget counts.

    Each group has one of int32 [max_num_seqs, blocks of the longest request], and the
    runner V2 a second one, which is what the forward reads.
    """
    length = config.model_config.max_model_len
    row = sum(-(-length // group.kv_cache_spec.block_size) for group in groups)
    return int(row * config.scheduler_config.max_num_seqs * 4 * 2)


def with_spec(group: Any, spec: Any) -> Any:
    """``group`` with another spec; a bundle of one layer gets it inside."""
    old = group.kv_cache_spec
    if is_bundle(old):
        spec = type(old)(
            block_size=spec.block_size, kv_cache_specs={group.layer_names[0]: spec}
        )
    return replace(group, kv_cache_spec=spec)


def first_spec(group: Any) -> Any:
    """The spec of the group's first layer, which in a bundle is that layer's own."""
    spec = group.kv_cache_spec
    return next(iter(spec.kv_cache_specs.values())) if is_bundle(spec) else spec
