"""The kinds of decoder layers: what each keeps per request, and what mixes are called.

A layer with two mixers side by side or in sequence is named with a plus sign,
for example ``mamba2+full_attention``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
COMPRESSED = "compressed_attention"
MLA = "mla"
GDN = "gated_delta_net"
KDA = "kimi_delta_attention"
LIGHTNING = "lightning_attention"
MAMBA1 = "mamba1"
MAMBA2 = "mamba2"
SHORT_CONV = "short_convolution"
MLP = "mlp"
MOE = "moe"
UNKNOWN = "unknown"

# Kind -> the cache it needs, None for layers that keep nothing. Kinds with the
# same cache fit into one group of vLLM's KV cache manager: its MLA spec is a
# full-attention spec, every state-space spec names its own type, and a window
# or a chunk frees blocks that full attention keeps.
CACHES: Mapping[str, str | None] = {
    FULL: "full",
    MLA: "full",
    SLIDING: "sliding",
    CHUNKED: "chunked",
    COMPRESSED: "compressed",
    GDN: "gdn state",
    KDA: "kda state",
    LIGHTNING: "lightning state",
    MAMBA1: "mamba1 state",
    MAMBA2: "mamba2 state",
    SHORT_CONV: "convolution state",
    MLP: None,
    MOE: None,
}

# Kind -> its name in a summary. Where several kinds meet, the first one found
# in this order names the mix.
NAMES: Mapping[str, str] = {
    GDN: "GDN",
    KDA: "KDA",
    LIGHTNING: "lightning-attention",
    MAMBA2: "Mamba-2",
    MAMBA1: "Mamba-1",
    SHORT_CONV: "short-convolution",
    COMPRESSED: "compressed-attention",
    CHUNKED: "chunked-attention",
    SLIDING: "sliding-window",
}

# Summaries of models whose layers all keep the same thing.
UNIFORM: Mapping[str, str] = {
    FULL: "dense",
    MLA: "dense (MLA)",
    SLIDING: "dense (sliding window)",
    CHUNKED: "dense (chunked attention)",
    MAMBA1: "pure Mamba",
    MAMBA2: "pure Mamba-2",
}


def parts(kind: str) -> tuple[str, ...]:
    """The mixers of one layer: ``mamba2+full_attention`` has two."""
    return tuple(kind.split("+"))


def mixers(layer_kinds: Iterable[str]) -> frozenset[str]:
    """The kinds among the layers that keep something per request."""
    found = {part for kind in set(layer_kinds) for part in parts(kind)}
    return frozenset(part for part in found if CACHES.get(part, part) is not None)


def is_hybrid(layer_kinds: Iterable[str]) -> bool:
    """Whether the layers need more than one kind of cache or state.

    Sliding windows in every layer are one kind and not hybrid. A layer of
    unknown kind may need anything, so it counts as hybrid.
    """
    found = mixers(layer_kinds)
    return UNKNOWN in found or len({CACHES.get(kind, kind) for kind in found}) > 1


def summarize(layer_kinds: Iterable[str], *, encoder_decoder: bool = False) -> str:
    """Two or three words that say what these layers make of a model."""
    found = mixers(layer_kinds)
    if encoder_decoder:
        return "encoder-decoder"
    if not found:
        return "no attention layers"
    if UNKNOWN in found:
        return "unknown layers"
    named = next((name for kind, name in NAMES.items() if kind in found), None)
    if is_hybrid(found):
        return f"{named} hybrid"
    if len(found) == 1:
        (kind,) = found
        return UNIFORM.get(kind, f"pure {named}")
    return UNIFORM[MLA]  # full attention and MLA: one cache, two shapes
