"""On hybrid models 0.24.0 saves zeros, or another request's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _kv_groups as layout
from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """The states' own cache group says how many tokens its blocks have."""
    wrapped(*args, **kwargs)
    groups = getattr(instance._kv_cache_config, "kv_cache_groups", ())
    index = layout.holder(groups)
    if index is not None:
        instance._hs_group_idx = index
        instance._block_size = groups[index].kv_cache_spec.block_size


PATCH = Patch(
    id="hybrid-zero-states",
    summary="hidden states of hybrid models are saved as zeros",
    why=(
        "On models with several kinds of layers (Mamba, GDN, sliding window) the files "
        "have the right shape and hold zeros or rows of other requests: the connector "
        "finds a block's rows with the block size of the whole cache, while the group "
        "of the hidden states has a smaller one. On one GPU the engine shares its "
        "config with the worker, and with it the smallest block size, which often "
        "happens to be the right one; with tensor parallelism it does not."
    ),
    see=(
        "Load a file and look for rows of zeros: (hidden_states == 0).all(2).any(). "
        "Rows of other requests only show beside a reference, which is what `specshim "
        "verify` is for; with the patch it says that all is right."
    ),
    upstream=("vllm#46301", "vllm#44328", "speculators#613"),
    affects=SpecifierSet(">=0.24.0,<0.25.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.__init__",
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=("self", "vllm_config", "role", "kv_cache_config"),
                    contains=(
                        "self._block_size = vllm_config.cache_config.block_size",
                        "self._hs_group_idx",
                    ),
                ),
            ),
            fixed=Fingerprint(
                parameters=("self", "vllm_config", "role", "kv_cache_config"),
                contains=("self._block_size = self._get_cache_block_size(",),
            ),
        ),
    ),
    processes=("engine core", "worker"),
    remove_when="vllm>=0.25.0",
)
