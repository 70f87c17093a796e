"""Where samples go: the interface of a sink, and the file sink."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

_PAGE = 4096  # the data begins on a page
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}


class SampleWriter(Protocol):
    """One sample on its way out. ``write`` may be called from several threads."""

    def write(self, start: int, rows: memoryview) -> None:
        """Take the bytes of consecutive rows, the first being row ``start``."""

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        """All ``rows`` rows are written: make the sample visible, complete."""

    def abort(self) -> None:
        """Instead of ``commit``: leave nothing of the sample behind."""

    def discard(self) -> None:
        """After ``commit``: nobody was told of the sample; remove it again."""


class Sink(Protocol):
    """Opens samples; what the handle means is the sink's own affair."""

    def open(self, handle: str, *, announced: bool) -> SampleWriter:
        """Begin a sample; ``announced``: a client may wait for it through its lock."""


class LockUnsupported(OSError):
    """The file system has no flock, so a client could not wait for the file."""


class FileSink:
    """Safetensors files as vLLM's ExampleHiddenStatesConnector writes them.

    Args:
        slots, hidden, dtype: a row is [slots, hidden] of ``dtype`` ("bfloat16", ...).
        metadata: header metadata of every file; values are strings.
        lock: hold ``<path>.lock`` (flock) while a file is incomplete, as vLLM's
            connector has done since 0.22; the clients of speculators 0.6 to 0.9 wait
            on it.
    """

    def __init__(
        self,
        slots: int,
        hidden: int,
        dtype: str,
        metadata: Mapping[str, str],
        lock: bool = True,
    ) -> None:
        itemsize = {"F64": 8, "F32": 4}.get(_DTYPES[dtype], 2)
        self.row_bytes = slots * hidden * itemsize
        if self.row_bytes % 8:
            raise ValueError(
                f"{slots} layers of hidden size {hidden} in {dtype} make rows of "
                f"{self.row_bytes} bytes, which a safetensors file cannot hold next to "
                "64-bit token ids; request one layer more or less"
            )
        self._shape = [slots, hidden]
        self._dtype = _DTYPES[dtype]
        self._metadata = dict(metadata)
        self._lock = lock
        room = len(self.header(2**40)) + 8  # a header can only get shorter than this
        self.base = -(-room // _PAGE) * _PAGE

    def header(self, rows: int, token_ids: int | None = None) -> bytes:
        """The JSON header for ``rows`` rows; unpadded."""
        end = rows * self.row_bytes
        ids = rows if token_ids is None else token_ids
        tensors = {
            "__metadata__": {**self._metadata, "num_tokens": str(rows)},
            "hidden_states": {
                "dtype": self._dtype,
                "shape": [rows, *self._shape],
                "data_offsets": [0, end],
            },
            "token_ids": {
                "dtype": "I64",
                "shape": [ids],
                "data_offsets": [end, end + 8 * ids],
            },
        }
        return json.dumps(tensors, separators=(",", ":")).encode()

    def open(self, handle: str, *, announced: bool) -> FileWriter:
        """Create the temporary file, and the lock file where clients will wait."""
        return FileWriter(self, handle, lock=self._lock and announced)


class FileWriter:
    """One safetensors file: a hidden temporary one until it is complete."""

    def __init__(self, sink: FileSink, path: str, *, lock: bool) -> None:
        self._sink = sink
        self._path = path
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        self._temporary = os.path.join(folder, f".{name[:200]}.{os.getpid()}.partial")
        self._lock_fd = _create_lock(f"{path}.lock") if lock else None
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(self._temporary, flags, 0o644)
        except OSError:
            self._unlock(remove=True)
            raise

    def write(self, start: int, rows: memoryview) -> None:
        """Write rows at their final place; see :class:`SampleWriter`."""
        offset = self._sink.base + start * self._sink.row_bytes
        _write_all(self._fd, rows, offset)

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        """Write token ids and header, then rename to the final name and unlock."""
        header = self._sink.header(rows, len(token_ids))
        end = self._sink.base + rows * self._sink.row_bytes
        ids = struct.pack(f"<{len(token_ids)}q", *token_ids)
        _write_all(self._fd, memoryview(ids), end)
        os.ftruncate(self._fd, end + len(ids))
        size = self._sink.base - 8
        start = struct.pack("<Q", size) + header.ljust(size)
        _write_all(self._fd, memoryview(start), 0)
        os.close(self._fd)
        os.rename(self._temporary, self._path)
        self._unlock(remove=False)

    def abort(self) -> None:
        """Remove the temporary file; a client that waits finds no file."""
        # Whatever is closed or gone already is as it should be.
        with suppress(OSError):
            os.close(self._fd)
        with suppress(OSError):
            os.unlink(self._temporary)
        self._unlock(remove=True)

    def discard(self) -> None:
        """Remove the complete file and its lock file."""
        for path in (self._path, f"{self._path}.lock"):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _unlock(self, *, remove: bool) -> None:
        if self._lock_fd is None:
            return
        if remove:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}.lock")
        os.close(self._lock_fd)
        self._lock_fd = None


def _create_lock(path: str) -> int:
    """Create and hold a lock file, as the stock connector does.

    Raises:
        LockUnsupported: flock fails for another reason than that it is held.
        OSError: it is held by another process, or the file cannot be created.
    """
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EWOULDBLOCK:
            raise OSError(error.errno, f"{path} is locked by another process") from None
        os.unlink(path)
        raise LockUnsupported(
            error.errno, f"flock on {path}: {error.strerror}"
        ) from None
    return descriptor


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + (1 << 30)], offset + done)
