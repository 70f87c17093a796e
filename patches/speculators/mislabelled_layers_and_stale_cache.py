"""Nothing compares the layers of a sample with those that the drafter is built for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Tell the datasets which layers the drafter takes, before anybody reads them.

    The first batches are held against the target's head, which only the drafter has.
    """
    from specshim import _head_check, _trainer

    names = ("model", "config", "train_loader", "val_loader")
    named = dict(zip(names, args, strict=False)) | dict(kwargs)
    for name in ("train_loader", "val_loader"):
        dataset = getattr(named.get(name), "dataset", None)
        if dataset is not None:
            _trainer.expect_layers_of(named["model"], dataset)
    made = wrapped(*args, **kwargs)
    _head_check.watch(named["model"])
    return made


PATCH = Patch(
    id="mislabelled-layers-and-stale-cache",
    summary="samples of other layers or another model are trained on",
    why=(
        "A drafter learns from the wrong layers: server and trainer get their layer "
        "ids separately, cached files are named after the row alone, and equal counts "
        "are all that has to fit."
    ),
    see=(
        "Begin a run whose layer ids are not those in the header of its cached files "
        "(safetensors.safe_open(FILE, 'pt').metadata()): nothing is said. With the "
        "patch each such sample is skipped, with a warning that says which layers it "
        "has; files without labels are used, with one warning that says so. A run "
        "whose rows are shifted or whose last layer is another stops at its start, if "
        "the target has learnt something."
    ),
    upstream=("speculators#705",),
    affects=SpecifierSet(">=0.5.0,<=0.9.0"),
    targets=(
        Target(
            name="speculators.train.trainer.Trainer.__init__",
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=(
                        "self",
                        "model",
                        "config",
                        "train_loader",
                        "val_loader",
                    )
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when=OPEN,
)
