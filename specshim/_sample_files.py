"""What every file of hidden states owes its reader: a whole file, and what it is."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from specshim._version import __version__
from specshim._vllm_facts import STOCK_MODULE

logger = logging.getLogger("vllm.specshim")

ROOM = "specshim.room"
"""Begins the name of the tensor that keeps room for labels in a header."""


def sample_labels(
    vllm_config: Any, layer_ids: Sequence[int] | None, route: str
) -> dict[str, str]:
    """The header metadata of a sample's file, for both routes; values are strings.

    Args:
        layer_ids: of the columns of ``hidden_states``, in their order; None where
            that is not known.
        route: "tap" or "cache".
    """
    from vllm import __version__ as vllm_version

    ids = {} if layer_ids is None else {"layer_ids": json.dumps(list(layer_ids))}
    model = str(vllm_config.model_config.model)
    served = getattr(vllm_config.model_config, "served_model_name", None) or [model]
    names = [served] if isinstance(served, str) else list(served)
    return {
        # of a folder, what it is called from everywhere
        "model": os.path.abspath(model) if os.path.isdir(model) else model,
        "served_model_name": json.dumps(names),
        **ids,
        "vllm": vllm_version,
        "specshim": __version__,
        "route": route,
    }


def temporary_name() -> str:
    """A hidden name that no other file has."""
    return f".{secrets.token_hex(16)}.partial"


def temporary_beside(path: str) -> str:
    """A hidden name in the folder of ``path`` that no other file has."""
    return os.path.join(os.path.dirname(path), temporary_name())


def is_temporary(name: str) -> bool:
    """Whether :func:`temporary_name` may have made this name."""
    return re.fullmatch(r"\.[0-9a-f]{32}\.partial", name) is not None


def hold(descriptor: int) -> bool:
    """Take a file's flock if it is free; False where it is not, or does not work."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


HELD = "held"
"""In a folder of :func:`whole_file`: its writer holds the flock of this file."""


@contextmanager
def whole_file(path: str) -> Iterator[str]:
    """A temporary name: what is written there gets the name ``path`` at the end.

    After an exception there is nothing under either name. The name is in a folder of
    its own beside ``path``, since safetensors (0.8) itself writes to a name beside the
    one that it is given; whatever a killed process leaves there is known by the
    folder's name, and by an flock that nobody holds any more.
    """
    folder = temporary_beside(path)
    os.mkdir(folder, 0o700)
    temporary = os.path.join(folder, "sample")
    descriptor = -1
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.join(folder, HELD), flags, 0o600)
        hold(descriptor)
        yield temporary
        os.rename(temporary, path)
    finally:
        with suppress(OSError):
            for name in os.listdir(folder):
                remove(os.path.join(folder, name))
            os.rmdir(folder)
        if descriptor >= 0:
            os.close(descriptor)


def remove(path: str) -> None:
    """Remove a file; one that is not there, or that cannot be removed, is no error."""
    with suppress(OSError):
        os.unlink(path)


def room_for(labels: Mapping[str, str]) -> str:
    """The name of an empty tensor that keeps room for ``labels`` in a header.

    safetensors puts the header first, so it cannot grow once the file is written.
    """
    longest = {**labels, "num_tokens": "9" * 12}
    return ROOM.ljust(len(_json({"__metadata__": longest})), ".")


def label(path: str, labels: Mapping[str, str]) -> None:
    """Write ``labels`` into the header of a file in which ``room_for`` them was left.

    Raises:
        ValueError: the file has no such room.
    """
    with open(path, "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        rows = header["hidden_states"]["shape"][0]
        header = {key: v for key, v in header.items() if not key.startswith(ROOM)}
        known = header.pop("__metadata__", {})
        labelled = {"__metadata__": {**known, **labels, "num_tokens": str(rows)}}
        text = _json({**labelled, **header})
        if len(text) > size:
            raise ValueError(f"the header of {path} has no room for its labels")
        file.seek(8)
        file.write(text.ljust(size))


def _json(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


WRITERS = frozenset({STOCK_MODULE, "hs_connectors.fp8_hidden_states_connector"})
"""Modules whose ``_write_tensors`` writes one safetensors file under the given name;
of any other connector that inherits from the stock one we do not know that."""

LABELLED = frozenset({"hidden_states", "token_ids"})
"""Tensors of a sample; other files get no labels."""

Save = Callable[..., None]  # (save_file of before, tensors, filename, **options)


@dataclass
class WholeWriter:
    """In place of a stock connector's ``_write_tensors``, from 0.22 on.

    Called in a writer thread. The lock is released once the file is there, whole and
    labelled, or once it is certain that it will not be there. A sample that cannot be
    labelled is saved without labels.
    """

    write: Callable[..., None]
    labels: Mapping[str, str] | None = None

    def __call__(
        self, tensors: dict[str, Any], event: Any, filename: str, lock_fd: int | None
    ) -> None:
        try:
            with whole_file(filename) as temporary:
                if not self._labelled(tensors, event, temporary):
                    self.write(tensors, event, temporary, None)
        except Exception as error:
            say_unwritten(filename, error)
            if lock_fd is not None:
                remove(f"{filename}.lock")
            raise  # the connector takes note
        finally:
            if lock_fd is not None:
                os.close(lock_fd)

    def _labelled(self, tensors: dict[str, Any], event: Any, path: str) -> bool:
        """Write the file with its labels; False where that is not possible."""
        labels = self.labels
        if labels is None or not tensors.keys() >= LABELLED:
            return False
        room = tensors["token_ids"].new_empty(0)
        self.write({**tensors, room_for(labels): room}, event, path, None)
        try:
            label(path, labels)
        except Exception as error:
            self.labels = None  # said once
            say_unlabelled(error)
            return False
        return True


def whole_writer(connector: Any) -> WholeWriter | None:
    """The connector's writer, made a whole one; None where we do not know it."""
    if type(connector)._write_tensors.__module__ not in WRITERS:
        return None
    if not isinstance(connector._write_tensors, WholeWriter):
        connector._write_tensors = WholeWriter(connector._write_tensors)
    writer: WholeWriter = connector._write_tensors
    return writer


def say_unwritten(filename: str, error: Exception) -> None:
    """Log an error: which sample is missing, and why."""
    logger.error(
        "No hidden states in %s, because the file could not be written (%s)%s",
        filename,
        error,
        "; is the disk full?" if isinstance(error, OSError) else ".",
    )


def say_unlabelled(error: Exception) -> None:
    """Log a warning: from here on files do not say what they are of."""
    logger.warning(
        "specshim: files of hidden states are saved without labels (%r).", error
    )


@contextmanager
def saving_with(save: Save) -> Iterator[None]:
    """In the stock connector up to 0.21, ``safetensors.torch.save_file`` is ``save``.

    It writes in the thread of the forward, so one change at a time is enough.
    """
    module = sys.modules[STOCK_MODULE]
    before = module.safetensors
    torch = SimpleNamespace(save_file=partial(save, before.torch.save_file))
    module.safetensors = SimpleNamespace(torch=torch)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.safetensors = before  # type: ignore[attr-defined]
