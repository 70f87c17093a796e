"""Finds the decoder inside a config.json, and its sizes under their many names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specshim.detect.families import CLASS_SIZES, ENCODER_DECODER, family_name
from specshim.detect.model import ModelNotFound
from specshim.detect.readers import LISTS, whole

MOST_LAYERS = 10_000  # a larger count is a damaged file, not a model

COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "decoder_layers",
)
# Where an encoder has its own count, the decoder's comes first.
COUNTS_AFTER_ENCODER = (
    "decoder_layers",
    "num_decoder_layers",
    "num_layers",
    "num_hidden_layers",
)
HIDDEN_SIZES = ("hidden_size", "d_model", "n_embd", "model_dim", "dim")
VOCAB_SIZES = ("vocab_size", "padded_vocab_size", "n_vocab")
EXPERT_COUNTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_routed_experts",
)
MODALITIES = (
    "vision_config",
    "visual",
    "vision_tower",
    "mm_vision_tower",
    "img_processor",
    "audio_config",
    "audio_encoder_config",
    "audio_processor",
    "speech_config",
)

# Parts of the names of nested configs: those that hold a text decoder, the best
# first, and those that never do.
_DECODERS = ("text", "llm", "language", "thinker", "lm", "decoder")
_OTHERS = frozenset(
    """adapter audio codec code2wav connector draft encoder generation generator image
    mtp predictor projector quant quantization rope sound speech talker token2wav tts
    video vision visual vit vocoder""".split()
)
_DEPTH = 3  # thinker_config.text_config is two deep


@dataclass(frozen=True)
class Decoder:
    """The part of a config that holds the decoder: its fields and where they are."""

    path: str  # "" for the top level, else "text_config", ...
    config: Mapping[str, Any]
    num_hidden_layers: int
    count_note: str | None = None  # where the count did not come from a count field


def is_encoder_decoder(config: Mapping[str, Any]) -> bool:
    """Whether ``config`` (one level of it) says that it has an encoder as well."""
    return config.get("is_encoder_decoder") is True or (
        isinstance(kind := config.get("model_type"), str)
        and family_name(kind) in ENCODER_DECODER
    )


def find_decoder(root: Mapping[str, Any]) -> Decoder | None:
    """The decoder in ``root``: a nested text config before the top level.

    That is the order of ``get_text_config`` in transformers. Vision, audio and
    talker configs never count; an unnamed nested config does where nothing
    better says how many layers there are.
    """
    ranked = sorted(_candidates(root), key=lambda found: found[0])
    for count in (_count, _class_count):
        for _, path, config in ranked:
            if (layers := count(config)) is not None:
                return Decoder(path, config, *layers)
    return None


def _candidates(
    root: Mapping[str, Any],
) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """(rank, path, config) of every level that may hold the decoder."""
    top = len(_DECODERS)
    level: list[tuple[int, str, Mapping[str, Any]]] = [(top, "", root)]
    for _ in range(_DEPTH):
        yield from level
        level = [
            (_rank(name, rank), f"{path}.{name}" if path else name, value)
            for rank, path, config in level
            for name, value in config.items()
            if isinstance(value, dict) and _may_hold_decoder(name)
        ]


def _may_hold_decoder(name: str) -> bool:
    words = name.split("_")
    return (name.endswith("_config") or name == "decoder") and not (
        _OTHERS.intersection(words)
    )


def _rank(name: str, outer: int) -> int:
    words = name.split("_")
    found = (rank for rank, word in enumerate(_DECODERS) if word in words)
    best = next(found, None)
    if best is None:
        return max(outer, len(_DECODERS)) + 1
    return min(best, outer)


def _count(config: Mapping[str, Any]) -> tuple[int, str | None] | None:
    kind = config.get("model_type")
    if kind == "nemotron_h":  # its class takes the count from the list, always
        listed = _listed(config)
        if listed is not None:
            return listed
    names = COUNTS_AFTER_ENCODER if is_encoder_decoder(config) else COUNTS
    for name in names:
        if (count := whole(config.get(name))) is not None:
            return count, None
    if (found := _listed(config)) is not None:
        return found
    for name in names:
        if config.get(name) is not None:
            raise ModelNotFound(
                f"{name} is {repr(config[name])[:40]} in the model's config.json, "
                "which is no positive whole number; download the file again."
            )
    return None


def _listed(config: Mapping[str, Any]) -> tuple[int, str | None] | None:
    for name in LISTS:
        value = config.get(name)
        if isinstance(value, (list, str)) and value:
            given = whole(config.get("num_hidden_layers"))
            note = (
                f"num_hidden_layers is {given}, but {name} lists {len(value)} layers, "
                "which decides"
                if given is not None and given != len(value)
                else f"the layer count is the length of {name}"
            )
            return len(value), None if given == len(value) else note
    return None


def _class_count(config: Mapping[str, Any]) -> tuple[int, str | None] | None:
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in CLASS_SIZES:
        return CLASS_SIZES[kind][0], (
            f"the file names no layer count; that of transformers' {kind} config "
            "class is taken"
        )
    return None


def hidden_size(config: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """The width of the residual stream, and a note where it is not the file's.

    None where neither the file nor transformers' config class says it.
    """
    found = first_whole(config, HIDDEN_SIZES)
    if found is not None:
        return found, None
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in CLASS_SIZES:
        return CLASS_SIZES[kind][1], (
            f"the file names no hidden size; that of transformers' {kind} config "
            "class is taken"
        )
    return None, "the config names no hidden size"


def first_whole(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of the fields ``names`` that holds a positive whole number."""
    values = (whole(config.get(name)) for name in names)
    return next((value for value in values if value is not None), None)


def has_experts(config: Mapping[str, Any]) -> bool:
    """Whether some layers choose among several experts."""
    if config.get("enable_moe_block") is False:
        return False
    nested = config.get("ffn_config")  # DBRX
    places = [config, nested] if isinstance(nested, dict) else [config]
    return any(
        (whole(value) or 0) > 1
        for place in places
        for name in EXPERT_COUNTS
        for value in _as_list(place.get(name))
    )


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def is_multimodal(root: Mapping[str, Any]) -> bool:
    """Whether the model takes more than text."""
    nested = root.get("thinker_config")
    places = [root, nested] if isinstance(nested, dict) else [root]
    return any(place.get(name) for place in places for name in MODALITIES)
