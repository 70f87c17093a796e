"""As mislabelled-served-files, in the loader of speculators 0.6."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import Fingerprint, Patch, Target


def load_hs_file(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Check the header of what was loaded; here nobody deletes what is refused."""
    return _trainer.load_named(wrapped, args, kwargs, leftover=True)


PATCH = Patch(
    id="mislabelled-served-files-in-the-dataset",
    summary="served samples of other layers or another model are trained on",
    why=(
        "A drafter learns from the wrong layers: the server was started with other "
        "layer ids than the trainer, and equal counts are all that has to fit."
    ),
    upstream=("speculators#705",),
    affects=SpecifierSet(">=0.6.0,<0.7.0"),
    targets=(
        Target(
            name="speculators.train.data._maybe_load_hs_file",
            wrapper=load_hs_file,
            forms=(
                Fingerprint(
                    parameters=("file_path",), contains=("return load_file(file_path)",)
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when="speculators>=0.7.0",
)
