"""Nothing compares the layers of a served file with those of the drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import OPEN, Fingerprint, Patch, Target


def load_hs_file(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Check the header of what was loaded."""
    return _trainer.load_named(wrapped, args, kwargs)


PATCH = Patch(
    id="mislabelled-served-files",
    summary="served samples of other layers or another model are trained on",
    why=(
        "A drafter learns from the wrong layers: the server was started with other "
        "layer ids than the trainer, and equal counts are all that has to fit."
    ),
    see=(
        "Begin a run whose layer ids are not those of the server, as many as they "
        "are: nothing is said. With the patch each sample is refused, with a sentence "
        "that says which layers it has; files without labels are used, with one "
        "warning that says so."
    ),
    upstream=("speculators#705",),
    affects=SpecifierSet(">=0.7.0,<=0.9.0"),
    targets=(
        Target(
            name="hs_connectors.transfer._load_hs_file",
            wrapper=load_hs_file,
            forms=(
                Fingerprint(
                    parameters=("file_path",), contains=("return load_file(file_path)",)
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when=OPEN,
)
