"""Hidden states of one layer are charged for as many layers as a group has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _kv_groups as layout
from specshim.patching import OPEN, Fingerprint, Patch, Target

NAMES = ("vllm_config", "kv_cache_spec")

SLACK = 1.15
"""Of the least cost: up to there, fewer and wider groups are better."""


def get_kv_cache_groups(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make the groups narrower where hidden states have their own group."""
    config, _ = layout.arguments(NAMES, args, kwargs)
    return _narrowed(config, wrapped(*args, **kwargs))


def _narrowed(config: Any, groups: list[Any]) -> list[Any]:
    """``groups`` cut to the width that is best, the hidden states in larger blocks.

    Each of the model's layers takes as much memory as before. Pipeline stages are
    left alone: a stage would pay for the groups of all other stages. So are bundles,
    which lie in a single group or a packing, and groups in the host's memory.
    """
    index = layout.hidden_group(groups)
    special = any(
        layout.is_bundle(group.kv_cache_spec) or getattr(group, "host_resident", False)
        for group in groups
    )
    staged = config.parallel_config.pipeline_parallel_size > 1
    if index is None or len(groups) == 1 or special or staged:
        return groups
    filled = list(groups)
    filled[index] = _filled(groups[index], groups[:index] + groups[index + 1 :])
    widest = max(len(group.layer_names) for group in groups)
    choices = [_cut(filled, width) for width in range(widest, 0, -1)]
    costs = [_cost(config, choice) for choice in choices]
    enough = SLACK * min(costs)
    return next(c for c, cost in zip(choices, costs, strict=True) if cost <= enough)


def _cut(groups: list[Any], width: int) -> list[Any]:
    """Groups of ``width`` layers each, and of what remains."""
    return [
        replace(group, layer_names=group.layer_names[start : start + width])
        for group in groups
        for start in range(0, len(group.layer_names), width)
    ]


def _cost(config: Any, groups: list[Any]) -> int:
    """Bytes of one request of the full length, and of all groups' block tables."""
    width = max(len(group.layer_names) for group in groups)
    page = max(group.kv_cache_spec.page_size_bytes for group in groups)
    blocks = layout.request_blocks(config, groups)
    return int(width * page * blocks) + layout.table_bytes(config, groups)


def _filled(group: Any, model: list[Any]) -> Any:
    """The hidden states' group with as many tokens in its page as hashing allows."""
    spec = group.kv_cache_spec
    sizes = layout.hashed_sizes(model)
    fitting = range(spec.page_size_bytes // layout.token_bytes(spec), 0, -1)
    size = next((n for n in fitting if layout.keeps_hashing(n, sizes)), 0)
    if size <= spec.block_size:
        return group
    return replace(group, kv_cache_spec=replace(spec, block_size=size))


PATCH = Patch(
    id="group-width-billing",
    summary="extraction multiplies the KV-cache memory that hybrid models need",
    why=(
        "The engine refuses to start, or takes few requests at a time, for want of "
        "KV-cache memory: a block of the pool is as wide as the widest group of "
        "layers, and the hidden states' group uses one layer's part of it. On "
        "Kimi-K3 with groups of 24 layers that is 130 GiB where 5.4 would do. The "
        "price are more groups, of which each has its own block table: they are made "
        "no narrower than pays for that. Wide groups are kept where a request then "
        "costs, tables included, at most 15 % more than at the best width."
    ),
    see=layout.SEEN_IN_MEMORY,
    upstream=("vllm#56774", "vllm#56822", "vllm#39949"),
    affects=SpecifierSet(">=0.22.0,<=0.32.0"),
    targets=(
        Target(
            name=layout.GROUPING,
            moved=(layout.MOVED_GROUPING,),
            wrapper=get_kv_cache_groups,
            forms=(
                Fingerprint(
                    parameters=NAMES,
                    contains=(
                        "groups.append(KVCacheGroupSpec([name], aligned))",
                        "page_size_padded=common_page",
                    ),
                ),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when=OPEN,
)
