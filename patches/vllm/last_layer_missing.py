"""DeepSeek's models never return their last layer, nor the embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target

from .no_eagle3_interface import LOAD


def set_layers(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Leave the model's own collecting alone unless it would miss a layer.

    It takes the sum of the two tensors that enter a layer: the last output enters
    none, and before the first layer there is no second tensor yet.
    """
    from specshim.tap import returned

    layers = args[0] if args else kwargs["layers"]
    ends = {0, instance.config.num_hidden_layers}
    if not ends.intersection(layers) or not returned.loading():
        return wrapped(*args, **kwargs)
    returned.ask_for(layers)
    return None


PATCH = Patch(
    id="last-layer-missing",
    summary="DeepSeek-V2/V3, GLM-MoE and Kimi K2 cannot return their last layer",
    why=(
        "A request for the last layer (the default of speculators) ends with a shape "
        "error, or with one other layer's states in every slot: these models collect "
        "what enters a layer, and the last output enters none."
    ),
    see=(
        "Ask for the last layer and an earlier one: the two slots of hidden_states "
        "are equal, or the engine stops with a shape error. With the patch the last "
        "slot, put through the model's norm and head, gives the first token that the "
        "server generates."
    ),
    upstream=("vllm#48124", "vllm#46973"),
    affects=SpecifierSet(">=0.18.0,<0.25.0"),
    targets=(
        LOAD,
        Target(
            name=(
                "vllm.model_executor.models.deepseek_v2"
                ".DeepseekV2ForCausalLM.set_aux_hidden_state_layers"
            ),
            wrapper=set_layers,
            forms=(
                Fingerprint(
                    parameters=("self", "layers"),
                    contains=("self.model.aux_hidden_state_layers = layers",),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.25.0",
)
