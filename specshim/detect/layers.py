"""Reads from a decoder's config fields what kind each of its layers is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specshim.detect import kinds
from specshim.detect.families import Family
from specshim.detect.readers import READERS, STATE, Words, whole

# What a recurrent layer is in a family that nobody has described yet.
STATE_HINTS: tuple[tuple[str, str], ...] = (
    ("linear_num_value_heads", kinds.GDN),
    ("linear_attn_config", kinds.KDA),
    ("mamba_num_heads", kinds.MAMBA2),
    ("mamba_n_heads", kinds.MAMBA2),
    ("n_mamba_heads", kinds.MAMBA2),
    ("mamba_headdim", kinds.MAMBA2),
    ("mamba_dt_rank", kinds.MAMBA1),
    ("conv_L_cache", kinds.SHORT_CONV),
)

# Beginnings of field names that only models with recurrent layers have.
_RECURRENT = ("mamba_", "ssm_", "linear_attn", "linear_num_", "lru_", "rwkv", "conv_L")


@dataclass(frozen=True)
class Layers:
    """One kind per layer, the field that said so, and what was odd about it."""

    kinds: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()


def read_layers(
    config: Mapping[str, Any], count: int, family: Family, *, known: bool
) -> Layers:
    """The kinds of the ``count`` layers that ``config`` describes.

    ``config`` holds the decoder's fields. Fields that the file leaves out take
    the family's defaults. What cannot be understood becomes ``unknown`` and a
    note; nothing raises.
    """
    full = {**family.defaults, **config}
    notes: list[str] = []
    for field, reader in READERS:
        if full.get(field) is None:
            continue
        words = reader(full[field], full, count, notes)
        if words is not None:
            given = config.get(field) is not None
            source = field if given else f"{field} (class default)"
            break
    else:
        words, source = _without_lists(full, count, family, known, notes)
    words = _fit(words, count, source, notes)
    return Layers(_resolve(words, full, family), source, tuple(notes))


def _without_lists(
    config: Mapping[str, Any], count: int, family: Family, known: bool, notes: list[str]
) -> tuple[Words, str]:
    if family.every is not None:
        return [family.every] * count, "model_type"
    recurrent = sorted(name for name in config if name.startswith(_RECURRENT))
    if family.state != kinds.UNKNOWN or (recurrent and not known):
        said = recurrent[0] if recurrent else "its model type"
        notes.append(
            f"{said} means recurrent layers, but no field says which layers they are"
        )
        return [kinds.UNKNOWN] * count, "model_type"
    return [kinds.FULL] * count, "model_type" if known else "no field to the contrary"


def _resolve(
    words: Words, config: Mapping[str, Any], family: Family
) -> tuple[str, ...]:
    state = family.state
    if state == kinds.UNKNOWN:
        state = next(
            (kind for name, kind in STATE_HINTS if config.get(name) is not None), state
        )
    attention = kinds.MLA if family.mla and _has_latents(config) else kinds.FULL
    sliding = attention if _window_off(config) else kinds.SLIDING
    meaning = {STATE: state, kinds.FULL: attention, kinds.SLIDING: sliding}
    return tuple(
        "+".join(meaning.get(part, part) for part in kinds.parts(word))
        for word in words
    )


def _has_latents(config: Mapping[str, Any]) -> bool:
    return whole(config.get("kv_lora_rank")) is not None and (
        config.get("use_mla") is not False
    )


def _window_off(config: Mapping[str, Any]) -> bool:
    """Whether the config names a window only to switch it off."""
    if config.get("use_sliding_window") is False:
        return True
    names = [n for n in ("sliding_window", "sliding_window_size") if n in config]
    return bool(names) and all(whole(config[n]) is None for n in names)


def _fit(words: Words, count: int, source: str, notes: list[str]) -> Words:
    if len(words) == count:
        return words
    notes.append(
        f"{source} describes {len(words)} layers, but the model has {count}; "
        + ("the rest is ignored" if len(words) > count else "the others are unknown")
    )
    return [*words[:count], *[kinds.UNKNOWN] * (count - len(words))]
