"""Targets have the wrong scale where the verifier's final norm means 1 + weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def load_verifier_weights(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Move the norm's weight, once it is loaded, where its gain is the verifier's."""
    from specshim import _norm_gain

    config = getattr(instance, "config", None)
    verifier = getattr(getattr(config, "speculators_config", None), "verifier", None)
    norm = getattr(instance, "verifier_norm", None)
    with _norm_gain.meant(norm, getattr(verifier, "name_or_path", None)):
        return wrapped(*args, **kwargs)


MIXIN = "speculators.model.DraftVocabMixin"
EAGLE = "speculators.models.eagle3.core.Eagle3DraftModel"

PATCH = Patch(
    id="mis-scaled-targets",
    summary="targets of Gemma, Qwen3-Next and Qwen3.5 have the wrong scale",
    why=(
        "The drafter learns another distribution than the verifier's, as a rule a far "
        "flatter one, and no metric tells. The verifier's final norm means 1 + weight "
        "(Gemma, Qwen3-Next, Qwen3.5), and the trainer's copy of it takes the weight "
        "itself for its gain. 0.9.0 knows of some of these models, with DFlash and "
        "what is built on it alone."
    ),
    see=(
        "Compare model.verifier_norm(x) of the drafter with the final norm of the "
        "verifier in transformers on the same x: they differ. With the patch they are "
        "the same. Where that norm cannot be read there is one warning, 'the gain of "
        "MODEL's final norm cannot be told', and nothing is changed."
    ),
    upstream=("speculators#1090", "speculators#797"),
    affects=SpecifierSet(">=0.5.0,<=0.9.0"),
    targets=(
        Target(  # all drafters of 0.6 and later
            name=f"{MIXIN}._load_verifier_weights",
            moved=(f"{MIXIN}.load_verifier_weights",),
            wrapper=load_verifier_weights,
            forms=(
                Fingerprint(
                    parameters=("self",),
                    contains=("self.verifier_norm.load_state_dict(verifier_norm_sd)",),
                ),
                Fingerprint(parameters=("self",), lacks=("verifier_norm",)),  # 0.5
            ),
        ),
        Target(  # in 0.5 it loads the norm, after the former; else it calls the former
            name=f"{EAGLE}.load_verifier_weights",
            wrapper=load_verifier_weights,
            forms=(
                Fingerprint(
                    parameters=("self",),
                    contains=("super().load_verifier_weights()",),
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when=OPEN,
)
