"""What a model is, read from its config.json alone."""

from __future__ import annotations

from dataclasses import dataclass


class ModelNotFound(Exception):
    """No config.json can be read for this model; the message is one clear sentence."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one kind: how many, and which config field said so."""

    kind: str  # "full_attention", "sliding_attention", "chunked_attention", "mla",
    # "gated_delta_net", "kimi_delta_attention", "lightning_attention", "mamba1",
    # "mamba2", "short_convolution", "mlp", "moe", "unknown"
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
    hidden_size: int
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


def detect_model(model: str) -> ModelFacts:
    """Facts of ``model``: a local folder, or a hub id whose config is in the local cache.

    Raises:
        ModelNotFound: no config.json, or one that is not a decoder's.
    """
    raise NotImplementedError
