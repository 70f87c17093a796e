"""What the patches of speculators share: a dataset's expectations, and bad news."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from specshim import _locks
from specshim._refusals import count_refused
from specshim._sample_identity import layer_ids_of
from specshim.detect.model import ModelNotFound, detect_model
from specshim.guard import (
    BadSample,
    Expected,
    check,
    check_metadata,
    current,
    expect,
    expecting,
    read_metadata,
)

_SCALES = "hidden_states_scales"  # hs_connectors.fp8_utils

ATTRIBUTE = "specshim_expected"
"""Set on datasets. Pickled with them, it makes the worker processes of a data loader
import specshim, whatever else they import."""

_SEEN = "specshim_seen"  # likewise, in each worker


def expected_by(dataset: Any) -> Expected:
    """What ``dataset`` was told to expect, with the model that it asks for."""
    known = getattr(dataset, ATTRIBUTE, None) or Expected()
    return replace(known, model=known.model or getattr(dataset, "model", None))


def cached_path(dataset: Any, index: int) -> Path | None:
    """Where the file of row ``index`` is, or would be, cached; None without files."""
    folder = getattr(getattr(dataset, "transfer", dataset), "hidden_states_path", None)
    if folder is None:
        return None
    return Path(folder) / f"hs_{dataset._map_to_file_idx(index)}.safetensors"


def check_cached_header(path: Path, expected: Expected) -> Expected:
    """Hold a cached file's header against the trainer.

    Returns:
        what is expected, with the layer ids of the header where it has them.

    Raises:
        BadSample: it names another model or other layers.
    """
    try:
        metadata = read_metadata(path)
    except OSError:
        return expected  # not cached, or whoever loads it will say what is wrong
    check_named(metadata, expected, str(path.parent))
    return _with_header(expected, metadata)


def _with_header(expected: Expected, metadata: Mapping[str, str]) -> Expected:
    named = layer_ids_of(metadata)
    return expected if named is None else replace(expected, layer_ids=named)


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
    check(_pieces(sample), sample["input_ids"], expected=expected)


def _pieces(sample: Mapping[str, Any]) -> list[Any]:
    last = sample["verifier_last_hidden_states"].unsqueeze(1)
    tokens, hidden = last.shape[0], last.shape[2]
    drafters = sample["hidden_states"]
    layers = drafters.shape[1] // max(hidden, 1)
    if not layers:
        return [last]  # alone, for MTP
    return [drafters.view(tokens, layers, hidden), last]


def check_served_sample(data: Mapping[str, Any], prompt: Sequence[int]) -> None:
    """Check what speculators is about to validate.

    Raises:
        BadSample: one sentence, as for :func:`specshim.guard.check`.
    """
    if not {"hidden_states", "token_ids"} <= data.keys():
        return  # which the validation itself tells
    states = data["hidden_states"]
    if _SCALES in data:
        raise BadSample(
            "Hidden states refused: they are FP8 with scales beside them, which this "
            "validation cannot read; generate without it, the FP8 backend of the "
            "trainer reads such files."
        )
    expected = current()
    holds_something = getattr(states, "ndim", 0) == 3 and states.numel()
    if expected.layer_ids is None and holds_something:
        # The last slot is the last layer's, which may have been asked for already.
        expected = replace(expected, layer_ids=(None,) * states.shape[1])
    check(states, data["token_ids"], prompt=prompt, expected=expected)


def check_beginning(sample: Mapping[str, Any], dataset: Any) -> None:
    """Hold what ArrowDataset hands on against the samples before it.

    Raises:
        BadSample: one sentence, as for :func:`specshim.guard.check`.
    """
    from specshim._sample_beginnings import Beginnings

    seen = vars(dataset).setdefault(_SEEN, Beginnings())
    problem = seen.problem(_pieces(sample), sample["input_ids"])
    if problem:
        raise BadSample(f"Hidden states refused: {problem}.")


def unavailable(dataset: Any, index: int, error: BadSample) -> Any:
    """What the dataset returns for a sample that it rejects, after a warning.

    Raises:
        BadSample: before 0.8, as :func:`count_refused`.
    """
    file = f"hs_{dataset._map_to_file_idx(index)}.safetensors"
    text = f"Sample {index} ({file}) is skipped. {error}"
    warnings.warn(text, stacklevel=2)
    kind = getattr(sys.modules.get("speculators.train.data"), "SampleUnavailable", None)
    return count_refused(dataset, kind and kind(reason=text), error)


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
    known = expected_by(dataset)
    expected = replace(
        known,
        layer_ids=(*ids, _last_layer(config)),
        silent_tokens=_silent_tokens(getattr(config, "transformer_layer_config", None)),
    )
    setattr(dataset, ATTRIBUTE, expected)


def _last_layer(config: Any) -> int | None:
    """The id of the last layer of the verifier that a drafter's config names.

    None where it names none, or its config.json is not on this machine.
    """
    verifier = getattr(getattr(config, "speculators_config", None), "verifier", None)
    name = getattr(verifier, "name_or_path", None)
    if not isinstance(name, str):
        return None
    try:
        return detect_model(name).num_hidden_layers
    except ModelNotFound:
        return None


def _silent_tokens(decoder: Any) -> frozenset[int]:
    """The padding token, whose embedding is zero, unless it also ends or begins text.

    As either it has an embedding, so that a zero row of it is a lost one.
    """
    others: list[Any] = []
    for name in ("eos_token_id", "bos_token_id"):
        value = getattr(decoder, name, None)
        others.extend(value if isinstance(value, (list, tuple)) else (value,))
    padding = getattr(decoder, "pad_token_id", None)
    if not isinstance(padding, int) or padding < 0 or padding in others:
        return frozenset()
    return frozenset([padding])


@dataclass
class Loading:
    """The sample that a dataset is about to return."""

    cached: Path | None  # where its file is looked for first
    leftover: Path | None = None  # a served file that nobody removes once refused
    refused: BadSample | None = None  # of what the server sent


_LOADING: ContextVar[Loading | None] = ContextVar("loading", default=None)


@contextmanager
def loading(cached: Path | None, expected: Expected) -> Iterator[Loading]:
    """Within the block a dataset loads one sample, which ``expected`` is held to."""
    here = Loading(cached)
    token = _LOADING.set(here)
    try:
        with expecting(expected):
            yield here
    finally:
        _LOADING.reset(token)


def skip(args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> None:
    """No sample, with a warning: for ``ArrowDataset._maybe_generate_hs(index)``."""
    index = args[0] if args else kwargs["index"]
    warnings.warn(f"Sample {index} is skipped. {error}", stacklevel=2)


def load_named(
    wrapped: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    leftover: bool = False,
) -> Any:
    """Around a function that loads the file of a sample: its header is checked too.

    Its layer ids count for what is checked later. ``leftover`` says that the caller
    lets served files lie once they are refused.

    Raises:
        BadSample: it contradicts what is expected where the file is loaded.
        FileNotFoundError: the server has said why there is no file.
    """
    path = Path(args[0] if args else kwargs["file_path"])
    with _locks.reason(f"{path}.lock") as said:
        sample = wrapped(*args, **kwargs)
        why = said() if sample is None else ""
    here = _LOADING.get()
    if sample is None:
        if why and not (here is not None and path == here.cached):
            raise _locks.missing(str(path), why)
        return None
    if here is not None:
        here.leftover = path if leftover and path != here.cached else None
    metadata = read_metadata(path)
    with removing_leftover():
        check_named(metadata, current(), str(path.parent))
    if here is not None:
        expect(_with_header(current(), metadata))
    return sample


@contextmanager
def removing_leftover() -> Iterator[None]:
    """Once the guard refuses a served file that would stay, remove it and its lock."""
    try:
        yield
    except BadSample as error:
        here = _LOADING.get()
        if here is not None:
            here.refused = error
        if here is not None and here.leftover is not None:
            for path in (here.leftover, Path(f"{here.leftover}.lock")):
                with suppress(OSError):
                    path.unlink()
        raise


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
