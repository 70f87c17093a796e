"""What a model is, read from its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specshim._sentences import in_lines, one_line

# The readers and tables are imported by the functions that need them: whoever
# only handles facts (the plan, the plugin in every worker) doesn't pay for them.


class ModelNotFound(Exception):
    """No config.json can be read for this model; the message is one clear sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one kind: how many, and which config field said so."""

    kind: str  # "full_attention", "sliding_attention", "chunked_attention", "mla",
    # "gated_delta_net", "kimi_delta_attention", "lightning_attention", "mamba1",
    # "mamba2", "short_convolution", "compressed_attention", "mlp", "moe", "unknown";
    # two mixers in one layer are joined: "mamba2+full_attention"
    count: int
    source: str  # e.g. "text_config.layer_types"


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model that the plan depends on."""

    name: str  # as the user gave it
    config_path: str
    model_type: str
    architectures: tuple[str, ...]
    known: bool  # False: judged by its fields alone
    text_config: str  # where the decoder's fields are: "" or "text_config", ...
    num_hidden_layers: int
    hidden_size: int  # 0 where the config does not say it
    vocab_size: int | None
    dtype: str | None
    layer_kinds: tuple[str, ...]  # one per decoder layer, in order
    groups: tuple[LayerGroup, ...]
    hybrid: bool  # more than one kind of KV cache or state among the layers
    summary: str  # "GDN hybrid", "sliding-window hybrid", "dense", "dense (MLA)", ...
    moe: bool
    multimodal: bool
    encoder_decoder: bool
    trust_remote_code: bool  # config names custom code (auto_map)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        in_lines(self, "notes")


def detect_model(
    model: str,
    *,
    revision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ModelFacts:
    """Facts of ``model``: a local folder, or a hub id that is in the local cache.

    ``revision`` is a branch, tag or commit of a hub id, "main" where it is None;
    ``overrides`` are merged into the config first, as vLLM merges hf_overrides.

    Raises:
        ModelNotFound: no config.json, or one that is not a decoder's.
    """
    from specshim.detect.config_file import find_config, read_config

    path = find_config(model, revision)
    config = _merged(read_config(path), overrides or {})
    return model_facts(config, name=model, config_path=str(path))


def _merged(config: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**config, **over}
    for key, value in over.items():
        old = config.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = _merged(old, value)
    return merged


def model_facts(
    config: Mapping[str, Any], *, name: str = "", config_path: str = "config.json"
) -> ModelFacts:
    """Facts of the model that a parsed config.json describes.

    Raises:
        ModelNotFound: it names no decoder layers.
    """
    from specshim.detect import decoder as sizes
    from specshim.detect import kinds
    from specshim.detect.families import family, is_known
    from specshim.detect.layers import read_layers

    decoder = sizes.find_decoder(config)
    if decoder is None:
        raise ModelNotFound(
            f"{config_path} names no layer count (num_hidden_layers), so it is not "
            "the config of a decoder model; give the folder of the target model."
        )
    count = decoder.num_hidden_layers
    if count > sizes.MOST_LAYERS:
        raise ModelNotFound(
            f"{config_path} claims {str(count)[:20]} layers, so it is damaged; "
            "download the model's config.json again."
        )
    text = decoder.config
    model_type = _word(config.get("model_type"))
    text_type = _word(text.get("model_type")) or model_type
    known = is_known(text_type)
    layers = read_layers(text, count, family(text_type), known=known)
    hidden_size, size_note = sizes.hidden_size(text)
    encoder_decoder = any(map(sizes.is_encoder_decoder, (config, text)))
    notes = [decoder.count_note, *layers.notes, size_note]
    if not known:
        described = (
            f"model type {text_type[:40]!r}" if text_type else "a missing model type"
        )
        notes.append(f"{described} is not known here: judged by its fields alone")
    source = f"{decoder.path}.{layers.source}" if decoder.path else layers.source
    return ModelFacts(
        name=name,
        config_path=config_path,
        model_type=model_type or text_type,
        architectures=_words(config.get("architectures"))
        or _words(text.get("architectures")),
        known=known,
        text_config=decoder.path,
        num_hidden_layers=count,
        hidden_size=hidden_size or 0,
        vocab_size=sizes.first_whole(text, sizes.VOCAB_SIZES)
        or sizes.first_whole(config, sizes.VOCAB_SIZES),
        dtype=_dtype(text) or _dtype(config),
        layer_kinds=layers.kinds,
        groups=group_layers(layers.kinds, source),
        hybrid=kinds.is_hybrid(layers.kinds),
        summary=kinds.summarize(layers.kinds, encoder_decoder=encoder_decoder),
        moe=kinds.MOE in layers.kinds or sizes.has_experts(text),
        multimodal=sizes.is_multimodal(config),
        encoder_decoder=encoder_decoder,
        trust_remote_code=any(
            isinstance(place.get("auto_map"), dict) and bool(place["auto_map"])
            for place in (config, text)
        ),
        notes=tuple(note for note in notes if note),
    )


def group_layers(layer_kinds: Sequence[str], source: str) -> tuple[LayerGroup, ...]:
    """The layers counted by kind, in the order in which the kinds first appear."""
    counts: dict[str, int] = {}
    for kind in layer_kinds:
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(LayerGroup(kind, count, source) for kind, count in counts.items())


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> tuple[str, ...]:
    return tuple(filter(None, map(_word, value))) if isinstance(value, list) else ()


def _dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype of the weights: "dtype" since transformers 5, "torch_dtype" before."""
    found = _word(config.get("dtype")) or _word(config.get("torch_dtype"))
    return found.removeprefix("torch.") or None
