"""A page smaller than one token's hidden states stops hybrid models at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _kv_groups as layout
from specshim.patching import Fingerprint, Patch, Target

NAMES = ("vllm_config", "kv_cache_spec")


def get_kv_cache_groups(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Let vLLM group layers whose pages were made large enough beforehand."""
    config, specs = layout.arguments(NAMES, args, kwargs)
    hidden, model = layout.hidden_layers(specs), layout.others(specs)
    if not hidden or not model or layout.in_one_group(config, specs):
        return wrapped(*args, **kwargs)
    need = max(layout.token_bytes(spec) for spec in hidden.values())
    page = max(spec.page_size_bytes for spec in model.values())
    if need <= page or layout.is_packed(config, model):
        return wrapped(*args, **kwargs)
    factor = -(-need // page)
    roomy = {n: s if n in hidden else _grown(s, factor) for n, s in specs.items()}
    return wrapped(config, roomy)


def _grown(spec: Any, factor: int) -> Any:
    """The spec with pages ``factor`` times as large.

    The page of a Mamba layer is one state, whatever its block size. That stays, since
    the scheduler ends chunks at multiples of it, where states can be cached.
    """
    from vllm.v1.kv_cache_interface import MambaSpec

    if isinstance(spec, MambaSpec):
        return replace(spec, page_size_padded=spec.page_size_bytes * factor)
    padded = getattr(spec, "page_size_padded", None)
    size = {"block_size": spec.block_size * factor}
    if padded is not None:
        size["page_size_padded"] = padded * factor
    return replace(spec, **size)


PATCH = Patch(
    id="tp-page-assert",
    summary="hybrid models with small pages (tensor parallel) fail to start",
    why=(
        "The engine stops with an AssertionError on page_size_padded: under tensor "
        "parallelism a block's page of a hybrid model gets smaller than the hidden "
        "states of one token, which tensor parallelism does not divide, and the "
        "layer that keeps them is told to fit into that page."
    ),
    see=(
        "The server stops at start with an AssertionError, raised below "
        "get_kv_cache_groups. With the patch it comes up."
    ),
    upstream=("vllm#51016", "vllm#50894"),
    affects=SpecifierSet(">=0.22.0,<0.30.0"),
    targets=(
        Target(
            name=layout.GROUPING,
            wrapper=get_kv_cache_groups,
            forms=(
                Fingerprint(
                    parameters=NAMES,
                    contains=(
                        "page_size_padded=common_page",
                        "max(common_page // per_token, 1)",
                    ),
                    lacks=("_ensure_min_page_size",),
                ),
            ),
            fixed=Fingerprint(
                parameters=NAMES,
                contains=("_ensure_min_page_size(",),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when="vllm>=0.30.0",
)
