"""Nothing compares the layers of a served file with those of the drafter."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import Fingerprint, Patch, Target

PATCH = Patch(
    id="mislabelled-served-files",
    summary="served samples of other layers or another model are trained on",
    why=(
        "A drafter learns from the wrong layers: the server was started with other "
        "layer ids than the trainer, and equal counts are all that has to fit."
    ),
    upstream=("speculators#705",),
    affects=SpecifierSet(">=0.7.0,<0.10.0"),
    targets=(
        Target(
            name="hs_connectors.transfer._load_hs_file",
            wrapper=_trainer.load_named,
            forms=(
                Fingerprint(
                    parameters=("file_path",), contains=("return load_file(file_path)",)
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when="hs_connectors>=0.10.0",
)
