"""What the patches of speculators share: a dataset's expectations, and bad news."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from specshim.guard import BadSample, Expected, check, check_metadata, read_metadata

ATTRIBUTE = "specshim_expected"
"""Set on datasets. Pickled with them, it makes the worker processes of a data loader
import specshim, whatever else they import."""


def expected_by(dataset: Any) -> Expected:
    """What ``dataset`` was told to expect, with the model that it asks for."""
    known = getattr(dataset, ATTRIBUTE, None) or Expected()
    model = known.model or getattr(dataset, "model", None)
    return Expected(model, known.layer_ids, known.hidden_size, known.silent_tokens)


def check_cached_header(dataset: Any, index: int) -> None:
    """Hold the header of the cached file of row ``index`` against the trainer.

    Raises:
        BadSample: it names another model or other layers.
    """
    folder = getattr(getattr(dataset, "transfer", dataset), "hidden_states_path", None)
    if folder is None:
        return  # a transfer without files
    file = f"hs_{dataset._map_to_file_idx(index)}.safetensors"
    try:
        metadata = read_metadata(Path(folder) / file)
    except OSError:
        return  # not cached, or whoever loads it will say what is wrong
    check_named(metadata, expected_by(dataset), str(folder))


def check_named(metadata: dict[str, str], expected: Expected, folder: str) -> None:
    """Check a header, and say once per process and folder that it says nothing.

    Raises:
        BadSample: it contradicts what is expected.
    """
    check_metadata(metadata, expected)
    known = bool(expected.model or expected.layer_ids)
    if known and not {"model", "layer_ids"} & metadata.keys():
        # The text is the same for each file, so Python shows it once.
        warnings.warn(
            f"specshim: the files in {folder} do not say which model and layers they "
            "hold, so nothing tells whether they fit this training run; files of a "
            "server with specshim say it.",
            stacklevel=2,
        )


def check_training_sample(sample: Any, expected: Expected) -> None:
    """Check what ArrowDataset hands on: the drafter's layers, then the last layer.

    Raises:
        BadSample: one sentence, as for :func:`specshim.guard.check`.
    """
    last = sample["verifier_last_hidden_states"].unsqueeze(1)
    tokens, hidden = last.shape[0], last.shape[2]
    pieces = [sample["hidden_states"].view(tokens, -1, hidden), last]
    if not pieces[0].shape[1]:
        pieces = pieces[1:]  # MTP: the last layer alone
    check(pieces, sample["input_ids"], expected=expected)


def unavailable(dataset: Any, index: int, error: BadSample) -> Any:
    """What the dataset returns for a cached sample that it rejects, after a warning."""
    file = f"hs_{dataset._map_to_file_idx(index)}.safetensors"
    text = f"Sample {index} ({file}) is skipped. {error}"
    warnings.warn(text, stacklevel=2)
    kind = getattr(sys.modules.get("speculators.train.data"), "SampleUnavailable", None)
    return kind(reason=text) if kind else None
