"""The hidden states' block size spoils prefix caching for the whole model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _kv_groups as layout
from specshim.patching import Fingerprint, Patch, Target


def get_kv_cache_groups(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Give the hidden states' group a block size that divides the others'."""
    groups = wrapped(*args, **kwargs)
    index = layout.hidden_group(groups)
    if index is None or len(groups) == 1:
        return groups
    group = groups[index]
    spec = layout.first_spec(group)
    sizes = layout.hashed_sizes(groups[:index] + groups[index + 1 :])
    if layout.keeps_hashing(spec.block_size, sizes):
        return groups
    common = math.gcd(*sizes)
    most = min(common, spec.block_size)
    size = next(n for n in range(most, 0, -1) if common % n == 0)
    groups[index] = layout.with_spec(group, replace(spec, block_size=size))
    return groups


PATCH = Patch(
    id="lcm-hash-assert",
    summary="extraction makes prefix caching of hybrid models slow and useless",
    why=(
        "Prompts with a shared prefix are computed anew, and the engine core spends "
        "its time hashing single tokens: the hidden states' group gets whatever "
        "block size fits its page, say 181 beside 544, so that blocks are hashed at "
        "the common divisor 1 and prefixes found only at multiples of 98,464 tokens."
    ),
    see=(
        "Send prompts of some hundred tokens that begin alike, and compare "
        "vllm:prefix_cache_hits of /metrics with vllm:prefix_cache_queries: there are "
        "no hits. With the patch there are, at multiples of the model's own block "
        "size."
    ),
    upstream=("vllm#51108",),
    affects=SpecifierSet(">=0.22.0,<0.28.0"),
    targets=(
        Target(
            name=layout.GROUPING,
            wrapper=get_kv_cache_groups,
            forms=(
                Fingerprint(
                    parameters=("vllm_config", "kv_cache_spec"),
                    contains=("new_bs = max(common_page // per_token, 1)",),
                ),
            ),
            fixed=Fingerprint(
                parameters=("vllm_config", "kv_cache_spec"),
                contains=("_largest_divisor_at_most(group_block_size",),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when="vllm>=0.28.0",
)
