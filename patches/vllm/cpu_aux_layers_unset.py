"""On the CPU the model is never told which layers to return: it returns none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import EXTRACT
from specshim.patching import Fingerprint, Patch, Target


def load_model(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Load, then ask the model for the layers, as the runner for GPUs does.

    Raises:
        RuntimeError: the model cannot return states of its layers.
    """
    from vllm.model_executor.models.interfaces import supports_eagle3

    result = wrapped(*args, **kwargs)
    speculative = instance.speculative_config
    if getattr(speculative, "method", None) != EXTRACT:
        return result
    if not supports_eagle3(instance.model):
        raise RuntimeError(
            f"{type(instance.model).__name__} returns no states of its layers in this "
            "vLLM; use the route tap (--specshim-route tap)."
        )
    layers = instance._get_eagle3_aux_layers_from_config()
    instance.model.set_aux_hidden_state_layers(layers)
    return result


PATCH = Patch(
    id="cpu-aux-layers-unset",
    summary="stock extraction on the CPU fails at start, too many values to unpack",
    why=(
        "On vLLM's CPU builds a server that extracts stops with 'too many values to "
        "unpack': the CPU runner loads the model and leaves out the step that tells it "
        "which layers' states to return."
    ),
    see=(
        "The server stops at start, and its log has 'too many values to unpack'. With "
        "the patch it comes up."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.20.0,<0.22.0"),
    targets=(
        Target(
            name="vllm.v1.worker.cpu_model_runner.CPUModelRunner.load_model",
            wrapper=load_model,
            forms=(
                Fingerprint(
                    parameters=("self", "load_dummy_weights"),
                    contains=("self.drafter.load_model(self.model)",),
                    lacks=("_setup_eagle3_aux_hidden_state_outputs",),
                ),
            ),
            fixed=Fingerprint(
                contains=("self._setup_eagle3_aux_hidden_state_outputs()",)
            ),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.22.0",
)
