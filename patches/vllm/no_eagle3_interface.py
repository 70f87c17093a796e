"""A model without vLLM's interface for its layers' states cannot be extracted from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def load_model(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Load, and tap a model that cannot return what it was asked for."""
    from specshim.tap import returned

    return returned.load_model(wrapped, instance, args, kwargs)


def supports_eagle3(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """While a model loads for extraction, one without the interface is given it."""
    from specshim.tap import returned

    model = args[0] if args else kwargs["model"]
    if wrapped(model) or isinstance(model, type) or not returned.loading():
        return wrapped(model)
    model.set_aux_hidden_state_layers = returned.ask_for
    return True


LOAD = Target(
    name="vllm.v1.worker.gpu_worker.Worker.load_model",
    wrapper=load_model,
    forms=(Fingerprint(parameters=("self",), contains=("self.model_runner",)),),
)

PATCH = Patch(
    id="no-eagle3-interface",
    summary="many models are refused: they do not return states of their layers",
    why=(
        "The server stops with 'Model does not support EAGLE3 interface but "
        "aux_hidden_state_outputs was requested': only models that opted in return "
        "states of their layers; Gemma 3, Granite 4, Falcon-H1, LFM2 and many others "
        "did not. Before 0.22 the configuration refuses them by a list of names."
    ),
    see=(
        "The log of the start has 'Model does not support EAGLE3 interface'. With the "
        "patch the server comes up, and `specshim verify` compares its states with "
        "transformers."
    ),
    upstream=("vllm#43130", "vllm#53052"),
    affects=SpecifierSet(">=0.22.0,<=0.32.0"),
    targets=(
        LOAD,
        Target(
            name="vllm.model_executor.models.interfaces.supports_eagle3",
            wrapper=supports_eagle3,
            forms=(
                Fingerprint(
                    parameters=("model",),
                    contains=("isinstance(model, SupportsEagle3)",),
                ),
            ),
            aliases=(
                "vllm.v1.worker.gpu_model_runner.supports_eagle3",
                "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils.supports_eagle3",
            ),
        ),
    ),
    processes=("worker",),
    remove_when=OPEN,
)
