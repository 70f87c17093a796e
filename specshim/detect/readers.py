"""The config fields that tell a decoder's layers apart, and how to read each.

A reader gets the field's value, the whole config, the layer count and a list of
notes to add to; it answers one word per layer, or None where the field says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specshim.detect import kinds

STATE = "state"  # stands for the family's recurrent kind
_HYBRID = f"{STATE}+{kinds.FULL}"
_HYBRID_SLIDING = f"{STATE}+{kinds.SLIDING}"

# Words of per-layer lists (layer_types, layers_block_type). transformers before
# 5.10 wrote "attention" and "mamba", later "full_attention", "linear_attention".
WORDS: Mapping[str, str] = {
    "full_attention": kinds.FULL,
    "attention": kinds.FULL,
    "global_attention": kinds.FULL,
    "indexed_attention": kinds.FULL,
    "deepseek_sparse_attention": kinds.FULL,
    "qwen_sparse_attention": kinds.FULL,
    "minimax_m3_sparse": kinds.FULL,
    "sliding_attention": kinds.SLIDING,
    "sliding_window_attention": kinds.SLIDING,
    "local_attention": kinds.SLIDING,
    "chunked_attention": kinds.CHUNKED,
    "compressed_sparse_attention": kinds.COMPRESSED,
    "heavily_compressed_attention": kinds.COMPRESSED,
    "linear_attention": STATE,
    "mamba": STATE,
    "mamba1": kinds.MAMBA1,
    "mamba2": kinds.MAMBA2,
    "conv": kinds.SHORT_CONV,
    "mlp": kinds.MLP,
    "moe": kinds.MOE,
    "hybrid": _HYBRID,
    "hybrid_sliding": _HYBRID_SLIDING,
}

# Characters of hybrid_override_pattern.
LETTERS: Mapping[str, str] = {
    "M": STATE,
    "*": kinds.FULL,
    "-": kinds.MLP,
    "E": kinds.MOE,
}

Words = Sequence[str]
Reader = Callable[[Any, Mapping[str, Any], int, list[str]], "Words | None"]


def whole(value: object, *, least: int = 1) -> int | None:
    """``value`` where it is a whole number of at least ``least``, else None."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    return None


def _unreadable(field: str, value: object, notes: list[str]) -> Words | None:
    shown = repr(value)[:40]
    notes.append(f"{field} is not understood ({shown}) and was passed over")
    return None


def _translate(
    field: str, values: Sequence[object], table: Mapping[str, str], notes: list[str]
) -> Words:
    strange = {
        str(value)[:40]
        for value in values
        if not isinstance(value, str) or value not in table
    }
    if strange:
        shown = ", ".join(repr(word) for word in sorted(strange)[:3])
        notes.append(f"{field} has entries that are not understood: {shown}")
    return [
        table.get(value, kinds.UNKNOWN) if isinstance(value, str) else kinds.UNKNOWN
        for value in values
    ]


def _word_list(field: str) -> Reader:
    def read(
        value: Any, config: Mapping[str, Any], count: int, notes: list[str]
    ) -> Words | None:
        if not isinstance(value, list) or not value:
            return _unreadable(field, value, notes)
        return _translate(field, value, WORDS, notes)

    return read


def _letters(
    value: Any, config: Mapping[str, Any], count: int, notes: list[str]
) -> Words | None:
    if not isinstance(value, str) or not value:
        return _unreadable("hybrid_override_pattern", value, notes)
    return _translate("hybrid_override_pattern", value, LETTERS, notes)


def _flags(field: str, zero: str, one: str) -> Reader:
    """A list of 0 and 1, one per layer."""

    def read(
        value: Any, config: Mapping[str, Any], count: int, notes: list[str]
    ) -> Words | None:
        if not isinstance(value, list) or not value:
            return _unreadable(field, value, notes)
        table = {"0": zero, "1": one}
        return _translate(
            field, [str(whole(flag, least=0)) for flag in value], table, notes
        )

    return read


def _indices(field: str, named: str, others: str) -> Reader:
    """A list of layer numbers counted from 0; the other layers differ."""

    def read(
        value: Any, config: Mapping[str, Any], count: int, notes: list[str]
    ) -> Words | None:
        if not isinstance(value, list):
            return _unreadable(field, value, notes)
        return _at(field, value, named, others, count, 0, notes)

    return read


def _at(
    field: str,
    value: Sequence[object],
    named: str,
    others: str,
    count: int,
    first: int,
    notes: list[str],
) -> Words:
    wanted = {whole(index, least=first) for index in value}
    chosen = {i - first for i in wanted if i is not None and i - first < count}
    if len(chosen) < len(wanted):
        notes.append(f"{field} names layers that the model does not have")
    return [named if i in chosen else others for i in range(count)]


def _ratios(
    value: Any, config: Mapping[str, Any], count: int, notes: list[str]
) -> Words | None:
    """How many tokens share a cache entry (DeepSeek-V4); 0 is a plain window."""
    if not isinstance(value, list) or not value:
        return _unreadable("compress_ratios", value, notes)
    table = {"0": kinds.SLIDING, "1": kinds.COMPRESSED}
    ratios = [whole(ratio, least=0) for ratio in value]
    flags = [str(ratio if ratio is None else min(ratio, 1)) for ratio in ratios]
    return _translate("compress_ratios", flags, table, notes)


def _kda_lists(
    value: Any, config: Mapping[str, Any], count: int, notes: list[str]
) -> Words | None:
    """Kimi's lists count layers from 1; layers in neither list are unknown."""
    lists = value if isinstance(value, dict) else {}
    linear, full = lists.get("kda_layers"), lists.get("full_attn_layers")
    if not isinstance(linear, list) or not isinstance(full, list):
        return _unreadable("linear_attn_config", value, notes)
    first = 0 if 0 in linear or 0 in full else 1
    field = "linear_attn_config"
    words = list(_at(field, linear, STATE, kinds.UNKNOWN, count, first, notes))
    attention = _at(field, full, kinds.FULL, kinds.UNKNOWN, count, first, notes)
    return [
        other if word == kinds.UNKNOWN else word
        for word, other in zip(words, attention, strict=True)
    ]


def _every(field: str, last: str, others: str) -> Reader:
    """Each n-th layer, counted from 1, is ``last``."""

    def read(
        value: Any, config: Mapping[str, Any], count: int, notes: list[str]
    ) -> Words | None:
        step = whole(value)
        if step is None:
            return _unreadable(field, value, notes)
        return [others if (i + 1) % step else last for i in range(count)]

    return read


def _periodic(
    value: Any, config: Mapping[str, Any], count: int, notes: list[str]
) -> Words | None:
    period, offset = whole(value), whole(config.get("attn_layer_offset"), least=0)
    if period is None or offset is None:
        return _unreadable("attn_layer_period", value, notes)
    return [kinds.FULL if i % period == offset else STATE for i in range(count)]


def _chunks(
    value: Any, config: Mapping[str, Any], count: int, notes: list[str]
) -> Words | None:
    """Layers with rotary embedding are chunked (Llama-4); the others see all."""
    rope = config.get("no_rope_layers")
    step = whole(config.get("no_rope_layer_interval"))
    if not isinstance(rope, list) and step is None:
        notes.append(
            "attention_chunk_size is set, but no field says which layers are chunked"
        )
        return None
    if isinstance(rope, list) and rope:
        reader = _flags("no_rope_layers", kinds.FULL, kinds.CHUNKED)
        return reader(rope, config, count, notes)
    return _every("no_rope_layer_interval", kinds.FULL, kinds.CHUNKED)(
        step or 4, config, count, notes
    )


def _pattern(
    value: Any, config: Mapping[str, Any], count: int, notes: list[str]
) -> Words | None:
    """Each n-th layer is global; EXAONE-4 also spells it as letters, "LLLG"."""
    if isinstance(value, str) and value and not set(value) - {"L", "G"}:
        letters = (value * count)[:count]
        return [kinds.SLIDING if c == "L" else kinds.FULL for c in letters]
    return _every("sliding_window_pattern", kinds.FULL, kinds.SLIDING)(
        value, config, count, notes
    )


def _window(
    value: Any, config: Mapping[str, Any], count: int, notes: list[str]
) -> Words | None:
    """A window without a list holds in all layers, Qwen's from a layer on."""
    window = whole(value)
    if window is None or config.get("use_sliding_window") is False:
        return None  # null, 0 and -1 all mean none
    length = whole(config.get("max_position_embeddings"))
    if length is not None and window >= length:
        notes.append("the sliding window is not smaller than the context")
    first = 0
    if config.get("use_sliding_window") is True:
        first = whole(config.get("max_window_layers"), least=0) or 0
    return [kinds.SLIDING if i >= first else kinds.FULL for i in range(count)]


# The fields that tell layers apart, the most explicit first.
READERS: tuple[tuple[str, Reader], ...] = (
    ("layer_types", _word_list("layer_types")),
    ("layers_block_type", _word_list("layers_block_type")),
    ("hybrid_override_pattern", _letters),
    ("attn_type_list", _flags("attn_type_list", STATE, kinds.FULL)),
    ("compress_ratios", _ratios),
    ("linear_attn_config", _kda_lists),
    ("full_attn_idxs", _indices("full_attn_idxs", kinds.FULL, STATE)),
    ("attn_layer_indices", _indices("attn_layer_indices", kinds.FULL, STATE)),
    ("hybrid_layer_ids", _indices("hybrid_layer_ids", _HYBRID, STATE)),
    ("attn_layer_period", _periodic),
    ("full_attention_interval", _every("full_attention_interval", kinds.FULL, STATE)),
    ("layer_group_size", _every("layer_group_size", kinds.FULL, STATE)),
    ("hybrid_layer_pattern", _flags("hybrid_layer_pattern", kinds.FULL, kinds.SLIDING)),
    ("attention_chunk_size", _chunks),
    (
        "global_attn_every_n_layers",
        _every("global_attn_every_n_layers", kinds.FULL, kinds.SLIDING),
    ),
    ("sliding_window_pattern", _pattern),
    ("sliding_window", _window),
)

# The fields whose length gives the layer count where nothing else does.
LISTS = (
    "layers_block_type",
    "hybrid_override_pattern",
    "layer_types",
    "attn_type_list",
)
