"""Samples from the cache of hidden states are trained on without a look at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """What the dataset expects, in place before a data loader pickles the dataset."""
    from specshim import _trainer
    from specshim.guard import Expected

    wrapped(*args, **kwargs)
    setattr(instance, _trainer.ATTRIBUTE, Expected())


def get_raw_data(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Header of the cached file, then its rows; a bad one is skipped with a warning.

    That is what the dataset itself does with a cached sample of the wrong tokens. Too
    many in a row end the run, as with what the server sends from 0.8 on.
    """
    from specshim import _refusals, _trainer, guard

    index = args[0] if args else kwargs["index"]
    expected = _trainer.expected_by(instance)
    cached = _trainer.cached_path(instance, index)
    try:
        if cached is not None:
            expected = _trainer.check_cached_header(cached, expected)
    except guard.BadSample as error:
        return _trainer.unavailable(instance, index, error)
    with _trainer.loading(cached, expected) as here:
        sample = wrapped(*args, **kwargs)
        if not isinstance(sample, dict):
            if here.refused is not None:
                return _refusals.count_refused(instance, sample, here.refused)
            return sample
        try:
            _trainer.check_training_sample(sample, guard.current())
            _trainer.check_beginning(sample, instance)
        except guard.BadSample as error:
            return _trainer.unavailable(instance, index, error)
    _refusals.accept(instance)
    return sample


PATCH = Patch(
    id="zero-states-in-the-cache",
    summary="cached samples are never validated",
    why=(
        "A drafter trained from cached files stays useless: ArrowDataset compares the "
        "token ids of a cached file and nothing else, so files of zeros, of one layer "
        "in every slot, or of another model are trained on."
    ),
    see=(
        "Save a cached file again with hidden_states set to zero: training goes on "
        "without a word. With the patch there is a warning 'Sample N "
        "(hs_N.safetensors) is skipped' that says which row is wrong, and a run that "
        "meets nothing else stops."
    ),
    upstream=("speculators#613", "speculators#705"),
    affects=SpecifierSet(">=0.5.0,<=0.9.0"),
    targets=(
        Target(
            name="speculators.train.data.ArrowDataset.__init__",
            wrapper=init,
            forms=(Fingerprint(parameters=("self", "max_len", "datapath")),),
        ),
        Target(
            name="speculators.train.data.ArrowDataset._get_raw_data",
            wrapper=get_raw_data,
            forms=(
                Fingerprint(
                    parameters=("self", "index"),
                    contains=(
                        '"verifier_last_hidden_states": loaded_hs["hidden_states"]',
                    ),
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when=OPEN,
)
