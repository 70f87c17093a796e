"""A batch in which every sample failed has the wrong types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target

_TYPES = {  # of a batch before any good one was seen; as train.py asks for by default
    "hidden_states": "bfloat16",
    "verifier_last_hidden_states": "bfloat16",
    "input_ids": "int64",
    "loss_mask": "bool",
}


def create_collate_fn(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Give the placeholder of an empty batch the types of this worker's good ones."""
    import torch

    collate = wrapped(*args, **kwargs)
    types = {name: getattr(torch, dtype) for name, dtype in _TYPES.items()}

    def typed(batch: Any) -> Any:
        good = next((sample for sample in batch if sample is not None), None)
        collated = collate(batch)
        if good is not None:
            types.update({name: value.dtype for name, value in collated.items()})
            return collated
        return {
            name: value.to(types.get(name, value.dtype))
            for name, value in collated.items()
        }

    return typed


PATCH = Patch(
    id="empty-sample-dtype",
    summary="a batch without a good sample stops training",
    why=(
        "A slow or stopped server ends the run with a dtype mismatch: where all "
        "samples of a batch failed, the placeholder has float32 throughout, token ids "
        "included."
    ),
    see=(
        "Stop the server during a run: it ends with an error that names two dtypes. "
        "With the patch the steps without a sample go on."
    ),
    upstream=("speculators#527",),
    affects=SpecifierSet(">=0.5.0,<0.6.0"),
    targets=(
        Target(
            name="speculators.train.data.create_collate_fn",
            wrapper=create_collate_fn,
            forms=(
                Fingerprint(
                    parameters=("max_len", "hidden_size", "preprocess"),
                    contains=("batch = [create_empty_sample(hidden_size)]",),
                ),
            ),
            aliases=("__main__.create_collate_fn",),  # scripts/train.py
        ),
    ),
    processes=("trainer",),
    remove_when="speculators>=0.6.0",
)
