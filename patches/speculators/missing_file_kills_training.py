"""One sample that the server could not make ends the training run of 0.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import Fingerprint, Patch, Target


def maybe_generate_hs(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Skip a sample without a file, with a warning, as one without an answer."""
    try:
        return wrapped(*args, **kwargs)
    except OSError as error:
        return _trainer.skip(args, kwargs, error)


PATCH = Patch(
    id="missing-file-kills-training",
    summary="one sample without a file ends the run",
    why=(
        "After hours the run dies with FileNotFoundError or NotADirectoryError: the "
        "server answered that it has no states of one prompt, or failed to write them, "
        "and the client of 0.5 loads the file outside of what it guards."
    ),
    see=(
        "The run ends with a FileNotFoundError that names a safetensors file of the "
        "server's. With the patch a warning names the sample and the server's reason, "
        "and training goes on with the next one."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.5.0,<0.6.0"),
    targets=(
        Target(
            name="speculators.train.data.ArrowDataset._maybe_generate_hs",
            wrapper=maybe_generate_hs,
            forms=(
                Fingerprint(
                    parameters=("self", "index"),
                    contains=("return None loaded_hs = load_file(hs_filepath)",),
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when="speculators>=0.6.0",
)
