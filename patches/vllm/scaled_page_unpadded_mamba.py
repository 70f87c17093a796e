"""Mamba layers are left behind when pages grow to hold a token's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def ensure_min_page_size(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Grow the pages of Mamba groups by padding, and leave their block size."""
    from vllm.v1.kv_cache_interface import MambaSpec

    def grown(before: Any, after: Any) -> Any:
        spec = before.kv_cache_spec
        if not isinstance(spec, MambaSpec):
            return after
        return replace(after, kv_cache_spec=replace(spec, page_size_padded=page))

    groups = args[0] if args else kwargs["groups"]
    scaled, page = wrapped(*args, **kwargs)
    if scaled is groups:  # pages are large enough
        return scaled, page
    return [grown(*pair) for pair in zip(groups, scaled, strict=True)], page


PATCH = Patch(
    id="scaled-page-unpadded-mamba",
    summary="growing pages break Mamba layers: no start, or wrong cached states",
    why=(
        "Where a token's hidden states outgrow a page, pages are enlarged by larger "
        "block sizes. A Mamba layer's page is one state, so it stays small unless "
        "it was padded, and the engine stops with an AssertionError or lays layers "
        "out over each other. With prefix caching the larger block size is worse "
        "than useless: the scheduler still ends chunks at multiples of the old one, "
        "so that a state is stored under the hash of tokens that it has not seen."
    ),
    see=(
        "The server stops at start with an AssertionError about pages, or a "
        "ValueError of validate_kv_cache_layout; with the patch it comes up. The "
        "wrong cached states show in a long prompt that is sent twice: without the "
        "patch its second answer can differ from one with --no-enable-prefix-caching."
    ),
    upstream=("vllm#50894",),
    affects=SpecifierSet(">=0.30.0,<=0.32.0"),
    targets=(
        Target(
            name="vllm.v1.core.kv_cache_utils._ensure_min_page_size",
            moved=("vllm.v1.core.kv_cache_planning._ensure_min_page_size",),
            wrapper=ensure_min_page_size,
            forms=(
                Fingerprint(
                    parameters=("groups", "common_page", "hidden_specs"),
                    contains=(
                        '= {"block_size": s.block_size * scale}',
                        "s.page_size_padded is not None",
                    ),
                ),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when=OPEN,
)
