"""A model that returns other layers than asked for: saved, with no error."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def propose(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Put the model's states in the places that were asked for.

    Raises:
        ValueError: the model returned another number of states.
    """
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    asked = instance.hf_config.eagle_aux_hidden_state_layer_ids
    call.arguments["target_hidden_states"] = as_asked(
        call.arguments["target_hidden_states"], asked
    )
    return wrapped(*call.args, **call.kwargs)


def aux_layers(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Ask the model for ascending ids, each once: all models return these alike.

    Most return ascending layers whatever the order of the ids, and some (those of the
    Transformers backend) follow the ids.
    """
    ids = wrapped(*args, **kwargs)
    method = getattr(instance.speculative_config, "method", None)
    if method != "extract_hidden_states" or not ids:
        return ids
    return tuple(sorted(set(ids)))


def as_asked(states: Sequence[Any], asked: Sequence[int]) -> list[Any]:
    """One state for each of the ids ``asked``, in their order, duplicates kept.

    Args:
        states: of the layers that :func:`aux_layers` asks the model for.

    Raises:
        ValueError: it is not one state for each layer.
    """
    ascending = sorted(set(asked))
    if len(states) != len(ascending):
        raise ValueError(
            f"specshim: the model returned states of {len(states)} layers, and the "
            f"layer ids {list(asked)} name {len(ascending)}: it does not return all of "
            "them in this vLLM. Use the route tap (--specshim-route tap)."
        )
    return [states[ascending.index(layer_id)] for layer_id in asked]


PATCH = Patch(
    id="layers-not-as-asked",
    summary="states of other layers are saved under the ids that were asked for",
    why=(
        "Every slot of a sample holds the same layer, or the slots are in another "
        "order than the layer ids: a model that cannot return a layer leaves it out, "
        "one state is broadcast over all slots, and nobody counts them. Most models "
        "return ascending layers whatever was asked for, and nobody orders them."
    ),
    see=(
        "Ask for the layer ids [8, 4] and, on another server, [4, 8]: most models give "
        "the same file for a prompt. With the patch the slots have changed places, and "
        "a model that returns another number of states stops with a ValueError that "
        "says both numbers."
    ),
    upstream=("vllm#48124", "vllm#46973"),
    affects=SpecifierSet(">=0.17.0,<=0.32.0"),
    targets=(
        Target(
            name=(
                "vllm.v1.spec_decode.extract_hidden_states"
                ".ExtractHiddenStatesProposer.propose"
            ),
            wrapper=propose,
            forms=(
                Fingerprint(
                    contains=("torch.stack(target_hidden_states, dim=1)",),
                    lacks=("len(target_hidden_states)",),
                ),
            ),
        ),
        Target(
            name=(
                "vllm.v1.worker.gpu_model_runner"
                ".GPUModelRunner._get_eagle3_aux_layers_from_config"
            ),
            wrapper=aux_layers,
            forms=(
                Fingerprint(
                    parameters=("self",),
                    contains=(
                        "eagle_aux_hidden_state_layer_ids",
                        "return tuple(layer_ids)",
                    ),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when=OPEN,
)
