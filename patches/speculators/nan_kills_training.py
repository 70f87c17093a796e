"""One NaN sample from the server ends the training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import Fingerprint, Patch, Target


def maybe_generate_hs(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Skip a sample with NaN as any other bad sample is skipped, with a warning."""
    try:
        return wrapped(*args, **kwargs)
    except ValueError as error:
        if "NaN" not in str(error):
            raise
        return _trainer.skip(args, kwargs, error)


PATCH = Patch(
    id="nan-kills-training",
    summary="one NaN sample ends the run",
    why=(
        "After hours the run dies with ValueError (Hidden states contain NaN values): "
        "of all bad samples, those with NaN are raised again instead of skipped."
    ),
    see=(
        "The run ends with ValueError: Hidden states contain NaN values. With the "
        "patch there is a warning 'Sample N is skipped' in its place."
    ),
    upstream=("speculators#615", "speculators#994"),
    affects=SpecifierSet(">=0.7.0,<0.8.0"),
    targets=(
        Target(
            name="speculators.train.data.ArrowDataset._maybe_generate_hs",
            wrapper=maybe_generate_hs,
            forms=(
                Fingerprint(
                    parameters=("self", "index"),
                    contains=('isinstance(e, ValueError) and "NaN" in str(e)',),
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when="speculators>=0.8.0",
)
