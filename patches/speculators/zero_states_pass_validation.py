"""Samples of zeros pass speculators' validation of what the server sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def check_hidden_states(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The guard first, so that the sentence is its own; then what was there before."""
    from specshim import _trainer

    named = dict(zip(("data", "tokens"), args, strict=False)) | dict(kwargs)
    with _trainer.removing_leftover():
        _trainer.check_served_sample(named["data"], named["tokens"])
    return wrapped(*args, **kwargs)


PATCH = Patch(
    id="zero-states-pass-validation",
    summary="samples of zeros, of one layer or of constants count as valid",
    why=(
        "The drafter's validation metrics look good and its acceptance stays near "
        "zero: the server sent zeros (or one layer in every slot), and "
        "check_hidden_states looks at keys, lengths and NaN only."
    ),
    see=(
        "Call check_hidden_states with zeros for hidden_states: it returns. With the "
        "patch it raises ValueError: 'Hidden states refused', and which row is wrong."
    ),
    upstream=("speculators#613",),
    affects=SpecifierSet(">=0.7.0,<=0.9.0"),
    targets=(
        Target(
            name="speculators.data_generation.offline.check_hidden_states",
            wrapper=check_hidden_states,
            forms=(Fingerprint(parameters=("data", "tokens")),),
            aliases=(
                "speculators.train.data.check_hidden_states",
                "speculators.cli.generate_offline_data.check_hidden_states",
                "__main__.check_hidden_states",  # scripts/data_generation_offline.py
            ),
        ),
    ),
    processes=("trainer",),
    remove_when=OPEN,
)
