"""The scheduler's half of a backend: where samples go, and what clients are told."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

_NAME_LIMIT = 200  # file names end at 255 bytes; suffixes need room
_PATH_LIMIT = 1000  # bytes; a path ends at 4,096, and every folder on it is one to make
_OURS = (".lock", ".partial", ".error")  # names that the protocol gives its own files
_CUSTOM_NAME_LIMIT = 255 - max(map(len, _OURS))
_SHOWN = 100  # characters of a client's text that go into a log line or an answer
_REASON_LIMIT = 900  # paths end at 4,096 bytes

NOWHERE: Final = "/dev/null/no hidden states: "
"""Begins the path that says why there is no file; nothing is below a device."""


class Places(Protocol):
    """Chooses the handles that a :class:`specshim.tap.sink.Sink` opens."""

    def choose(self, request_id: str, parameters: Mapping[str, Any]) -> str:
        """The handle for a request with these ``kv_transfer_params``.

        Raises:
            ValueError: there can be none; the message is for the client.
        """

    def tell(
        self, handle: str, rows: int | None, ids: int, *, with_output: bool
    ) -> dict[str, Any] | None:
        """The response's ``kv_transfer_params`` for a sample.

        Args:
            handle: as chosen.
            rows: its number of rows; None while that is not known.
            ids: its number of token ids.
            with_output: whether rows of output tokens are among them.
        """

    def refuse(self, reason: str) -> dict[str, Any]:
        """The response's ``kv_transfer_params`` where there will be no sample."""


class FilePlaces:
    """Files below ``storage``, told of by their paths."""

    def __init__(self, storage: str, allow_custom_path: bool) -> None:
        self._storage = storage
        self._allow_custom_path = allow_custom_path

    def choose(self, request_id: str, parameters: Mapping[str, Any]) -> str:
        """See :class:`Places`; clients may name a file where that is allowed."""
        asked = parameters.get("hidden_states_path")
        if asked is None:
            return os.path.join(self._storage, file_name(request_id))
        if not self._allow_custom_path:
            raise ValueError(
                "the request names a hidden_states_path, which the server does not "
                "allow; leave it out, or set allow_custom_save_path in "
                "kv_connector_extra_config"
            )
        return custom_path(self._storage, asked)

    def tell(
        self, handle: str, rows: int | None, ids: int, *, with_output: bool
    ) -> dict[str, Any]:
        """See :class:`Places`; the path says all."""
        return {"hidden_states_path": handle}

    def refuse(self, reason: str) -> dict[str, Any]:
        """See :class:`Places`; the reason is also in a path that can never exist.

        The stock clients of all releases name the path that they could not load, and
        nothing else of the response.
        """
        text = reason.replace("\0", "")[:_REASON_LIMIT]
        return {"hidden_states_error": reason, "hidden_states_path": f"{NOWHERE}{text}"}


def file_name(request_id: str) -> str:
    """A file name for a request id, which may come from a client's header.

    Anything but letters, digits, ``-``, ``_`` and inner dots is replaced, and a hash of
    the id is added where something was replaced or cut, so that ids stay distinct.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]", "_", request_id).lstrip(".")[:_NAME_LIMIT]
    if clean != request_id or not clean:
        digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()
        clean = f"{clean}-{digest[:16]}".lstrip("-")
    return f"{clean}.safetensors"


def shown(text: str) -> str:
    """A client's text for one line of a log: printable ASCII, and not too long."""
    escaped = ascii(text[: _SHOWN + 1])[1:-1]
    return escaped if len(escaped) <= _SHOWN else f"{escaped[:_SHOWN]}..."


def custom_path(storage: str, asked: object) -> str:
    """The real path of a client's ``hidden_states_path``; it must lie in ``storage``.

    Links are resolved, so that one which leads out of ``storage`` is seen here. What
    changes later is refused by :class:`specshim.tap.folder.Storage`.

    Raises:
        ValueError: it does not; the message is for the client.
    """
    root = os.path.realpath(storage)
    if not isinstance(asked, str) or not asked:
        raise ValueError("hidden_states_path must be a file path")
    if not asked.isprintable():  # NUL, line ends, half a character
        raise ValueError("hidden_states_path holds a character that cannot be printed")
    if len(asked) > len(root) + _PATH_LIMIT:  # before anything walks along it
        raise ValueError(f"hidden_states_path is longer than {_PATH_LIMIT} bytes")
    path = os.path.realpath(os.path.join(root, asked))
    if os.path.commonpath([root, path]) != root or path == root:
        raise ValueError(f"hidden_states_path must lie below the storage path {root}")
    _check_names(os.path.relpath(path, root))
    if asked.endswith("/") or os.path.isdir(path):
        raise ValueError("hidden_states_path is a folder")
    return path


def _check_names(path: str) -> None:
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise ValueError(f"hidden_states_path is longer than {_PATH_LIMIT} bytes")
    for name in path.split("/"):
        if len(os.fsencode(name)) > _CUSTOM_NAME_LIMIT:
            raise ValueError(
                f"hidden_states_path has a name of more than {_CUSTOM_NAME_LIMIT} "
                f"bytes: {shown(name)}"
            )
        if name.lower().endswith(_OURS):
            raise ValueError(
                f"hidden_states_path has a name that ends in {', '.join(_OURS[:-1])} "
                f"or {_OURS[-1]}, which the server gives files of its own"
            )
