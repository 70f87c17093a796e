"""What the patches of speculators share: a dataset's expectations, and bad news."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from specshim import _locks
from specshim.guard import (
    BadSample,
    Expected,
    check,
    check_metadata,
    current,
    read_metadata,
)

ATTRIBUTE = "specshim_expected"
"""Set on datasets. Pickled with them, it makes the worker processes of a data loader
import specshim, whatever else they import."""


def expected_by(dataset: Any) -> Expected:
    """What ``dataset`` was told to expect, with the model that it asks for."""
    known = getattr(dataset, ATTRIBUTE, None) or Expected()
    return replace(known, model=known.model or getattr(dataset, "model", None))


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
    drafters = sample["hidden_states"]
    layers = drafters.shape[1] // max(hidden, 1)
    pieces = [drafters.view(tokens, layers, hidden), last]
    if not layers:
        pieces = pieces[1:]  # the last layer alone, for MTP
    check(pieces, sample["input_ids"], expected=expected)


def unavailable(dataset: Any, index: int, error: BadSample) -> Any:
    """What the dataset returns for a cached sample that it rejects, after a warning."""
    file = f"hs_{dataset._map_to_file_idx(index)}.safetensors"
    text = f"Sample {index} ({file}) is skipped. {error}"
    warnings.warn(text, stacklevel=2)
    kind = getattr(sys.modules.get("speculators.train.data"), "SampleUnavailable", None)
    return kind(reason=text) if kind else None


def expect_layers_of(model: Any, dataset: Any) -> None:
    """Have ``dataset`` expect the layers that the drafter ``model`` was built for.

    The server appends the last layer, whose id the drafter's config does not have.
    """
    config = getattr(model, "config", None)
    for name in ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"):
        ids = getattr(config, name, None)
        if ids:
            break
    else:
        return  # MTP takes the last layer of whatever there is
    decoder = getattr(config, "transformer_layer_config", None)
    padding = getattr(decoder, "pad_token_id", None)
    silent = frozenset([padding]) if isinstance(padding, int) else frozenset()
    known = expected_by(dataset)
    expected = replace(known, layer_ids=(*ids, None), silent_tokens=silent)
    setattr(dataset, ATTRIBUTE, expected)


def load_named(wrapped: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Around a function that loads the file of a sample: its header is checked too.

    Raises:
        BadSample: it contradicts what is expected where the file is loaded.
    """
    sample = wrapped(*args, **kwargs)
    path = Path(args[0] if args else kwargs["file_path"])
    if sample is not None:
        check_named(read_metadata(path), current(), str(path.parent))
    return sample


def wait_longer(wrapped: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Around a wait for a lock: as long as for the server's answer, unless told."""
    if len(args) < 2 and "timeout" not in kwargs:
        kwargs = {**kwargs, "timeout": _locks.PATIENCE}
    return wrapped(*args, **kwargs)


def wait_on_nfs(wrapped: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """In place of a wait for a lock: through a descriptor that can write."""
    names = {"lock_path": "path", "poll_interval": "interval"}
    named = {names.get(name, name): value for name, value in kwargs.items()}
    wait = _locks.wait_async if iscoroutinefunction(wrapped) else _locks.wait
    return wait(*args, **named)


def delete_when_free(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Around a transfer's ``delete(handle)``: the lock file goes too.

    A file that the server still writes would come back after its deletion, so that one
    waits for the first later call that finds its lock free.
    """
    handle = args[0] if args else kwargs["handle"]
    late = vars(instance).setdefault("_specshim_late", [])
    for earlier in [h for h in late if not _locks.held(f"{h}.lock")]:
        late.remove(earlier)
        Path(earlier).unlink(missing_ok=True)
        Path(f"{earlier}.lock").unlink(missing_ok=True)
    if _locks.held(f"{handle}.lock"):
        late.append(handle)
        return None
    try:
        return wrapped(*args, **kwargs)
    finally:
        with suppress(OSError):
            Path(f"{handle}.lock").unlink()
