"""Where samples go: the interface of a sink, and the file sink."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from specshim._sample_files import hold, temporary_beside

_PAGE = 4096  # the data begins on a page
_TAILS = 512  # room in the header for the tensors that follow the rows
_REASON_LIMIT = 2000  # bytes
_KILLED = "the server ended before the sample was complete"
_DTYPES = {
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "float32": ("F32", 4),
    "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
}  # names in safetensors, and bytes


class SampleWriter(Protocol):
    """One sample on its way out. ``write`` may be called from several threads."""

    def write(self, start: int, rows: memoryview) -> None:
        """Take the bytes of consecutive rows, the first being row ``start``."""

    def ending(self) -> None:
        """No more rows will come; what came may still be on its way to ``write``.

        Called at most once, before ``commit`` or ``abort``; may be left out.
        """

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        """All ``rows`` rows are written: make the sample visible, complete."""

    def abort(self) -> None:
        """Instead of ``commit``, or after it failed: give up what was written.

        Either ``report`` or ``discard`` follows.
        """

    def report(self, reason: str) -> None:
        """After ``abort``: the client knows the handle; tell it why there is no sample.

        Only where its transport has a way to, and not before it may look there.
        """

    def discard(self) -> None:
        """After ``commit`` or ``abort``: nobody was told of it; leave nothing."""


class Sink(Protocol):
    """Opens samples; what the handle means is the sink's own affair.

    ``slow``: ends of samples may take long, so the forward's thread must not wait.
    """

    slow: bool

    def open(
        self, handle: str, *, announced: bool, rows: int | None = None
    ) -> SampleWriter:
        """Begin a sample of ``rows`` rows, None where only the end will tell.

        ``announced``: a client may wait for it through its lock.
        """


class LockUnsupported(OSError):
    """The file system has no flock, so a client could not wait for the file."""


@dataclass(frozen=True)
class Tail:
    """A tensor that follows the rows of a file: a name and what safetensors needs."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class FileSink:
    """Safetensors files as vLLM's ExampleHiddenStatesConnector writes them.

    Args:
        slots, hidden, dtype: a row is [slots, hidden] of ``dtype`` ("bfloat16", ...).
        metadata: header metadata of every file; values are strings.
        lock: hold ``<path>.lock`` (flock) while a file is incomplete, as vLLM's
            connector has done since 0.22; the clients of speculators 0.6 to 0.9 wait
            on it.
    """

    slow = False

    def __init__(
        self,
        slots: int,
        hidden: int,
        dtype: str,
        metadata: Mapping[str, str],
        lock: bool = True,
    ) -> None:
        self._dtype, itemsize = _DTYPES[dtype]
        self.row_bytes = slots * hidden * itemsize
        if self.row_bytes % 8:
            raise ValueError(
                f"{slots} layers of hidden size {hidden} in {dtype} make rows of "
                f"{self.row_bytes} bytes, which a safetensors file cannot hold next to "
                "64-bit token ids; request one layer more or less"
            )
        self._shape = [slots, hidden]
        self._metadata = dict(metadata)
        self._lock = lock
        room = len(self.header(2**40)) + 8 + _TAILS
        self.base = -(-room // _PAGE) * _PAGE

    def header(self, rows: int, tails: Sequence[Tail] = ()) -> bytes:
        """The JSON header for ``rows`` rows and what follows them; unpadded."""
        end = rows * self.row_bytes
        tensors: dict[str, Any] = {
            "__metadata__": {**self._metadata, "num_tokens": str(rows)},
            "hidden_states": {
                "dtype": self._dtype,
                "shape": [rows, *self._shape],
                "data_offsets": [0, end],
            },
        }
        for tail in tails:
            start, end = end, end + len(tail.data)
            tensors[tail.name] = {
                "dtype": tail.dtype,
                "shape": tail.shape,
                "data_offsets": [start, end],
            }
        return json.dumps(tensors, separators=(",", ":")).encode()

    def open(
        self, handle: str, *, announced: bool, rows: int | None = None
    ) -> FileWriter:
        """Create the temporary file, and the lock file where clients will wait."""
        return FileWriter(self, handle, lock=self._lock and announced)


class FileWriter:
    """One safetensors file: a hidden temporary one, locked, until it is complete.

    Whatever lay under the final name is removed at the start, so that a client can
    never take an older sample for this one.
    """

    def __init__(self, sink: FileSink, path: str, *, lock: bool) -> None:
        self._sink = sink
        self._path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._temporary = ""
        self._complete: os.stat_result | None = None
        self._locks = lock
        self._lock_fd = _create_lock(f"{path}.lock") if lock else -1
        self._fd = -1
        try:
            if lock:  # what a waiting client finds where this process is killed
                _say(self._lock_fd, _KILLED)
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._temporary, self._fd = _create_temporary(path)
        except BaseException:  # a server that stops raises SystemExit anywhere
            self.discard()
            raise

    def write(self, start: int, rows: memoryview) -> None:
        """Write rows at their final place; see :class:`SampleWriter`."""
        offset = self._sink.base + start * self._sink.row_bytes
        _write_all(self._fd, rows, offset)

    def ending(self) -> None:
        """Nothing to do: rows are in the file already."""

    def tails(self, rows: int, token_ids: Sequence[int]) -> list[Tail]:
        """What follows the rows; the widest type first, so that all are aligned."""
        ids = struct.pack(f"<{len(token_ids)}q", *token_ids)
        return [Tail("token_ids", "I64", (len(token_ids),), ids)]

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        """Write token ids and header, then rename to the final name and unlock."""
        tails = self.tails(rows, token_ids)
        header = self._sink.header(rows, tails)
        end = self._sink.base + rows * self._sink.row_bytes
        rest = b"".join(tail.data for tail in tails)
        _write_all(self._fd, memoryview(rest), end)
        os.ftruncate(self._fd, end + len(rest))
        size = self._sink.base - 8
        start = struct.pack("<Q", size) + header.ljust(size)
        _write_all(self._fd, memoryview(start), 0)
        self._close()  # some file systems report a failed write only here
        found = os.stat(self._temporary)
        os.rename(self._temporary, self._path)
        self._complete = found
        self._unlock()

    def abort(self) -> None:
        """Remove the temporary file; a client that knows the path still waits."""
        with suppress(OSError):
            self._close()
        _remove(self._temporary)

    def report(self, reason: str) -> None:
        """Leave the reason in the lock file, which its reader removes, and let go.

        A reader that knows nothing of it finds the lock free and no file.
        """
        if self._lock_fd >= 0:
            with suppress(OSError):
                _say(self._lock_fd, reason)
        self._unlock()

    def discard(self) -> None:
        """Remove the complete file, unless another took its name, and the lock."""
        if self._complete is not None and _is_unchanged(self._path, self._complete):
            _remove(self._path)
        lock = f"{self._path}.lock"
        if self._lock_fd < 0:
            if self._locks:
                _remove_free_lock(lock)
        elif _is_at(lock, os.fstat(self._lock_fd)):
            _remove(lock)
        self._unlock()

    def _close(self) -> None:
        descriptor, self._fd = self._fd, -1  # never twice: numbers are used again
        if descriptor >= 0:
            os.close(descriptor)

    def _unlock(self) -> None:
        descriptor, self._lock_fd = self._lock_fd, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


def _is_unchanged(path: str, found: os.stat_result) -> bool:
    """Whether ``path`` names the file that was ``found``, though it is not open.

    The number of a file that is gone is given to the next one.
    """
    with suppress(OSError):
        now = os.stat(path, follow_symlinks=False)
        return os.path.samestat(now, found) and now.st_mtime_ns == found.st_mtime_ns
    return False


def _is_at(path: str, found: os.stat_result) -> bool:
    """Whether ``path`` names the open file that was ``found``."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), found)
    except OSError:
        return False


def _remove_free_lock(path: str) -> None:
    """Remove a lock file of ours that nobody has taken since."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        descriptor = os.open(path, flags)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        finally:
            os.close(descriptor)


def _create_temporary(path: str) -> tuple[str, int]:
    """A new file beside ``path``, held so that no other server sweeps it away."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        temporary = temporary_beside(path)
        descriptor = os.open(temporary, flags, 0o644)
        if not hold(descriptor) or _is_at(temporary, os.fstat(descriptor)):
            return temporary, descriptor
        os.close(descriptor)  # swept between its creation and our flock


def _remove(path: str) -> None:
    """Remove a file if that is possible.

    A file system that fails here has failed the sample already, or keeps a file that
    nobody is told of; neither may stop the server.
    """
    with suppress(OSError):
        os.unlink(path)


def _create_lock(path: str) -> int:
    """Create and hold a lock file, as the stock connector does.

    Raises:
        LockUnsupported: flock fails for another reason than that it is held.
        OSError: it is held by another process, or the file cannot be created.
    """
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        created = not os.path.lexists(path)
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EWOULDBLOCK:
                text = f"{path} is locked by another process"
                raise OSError(error.errno, text) from None
            if created:
                _remove(path)
            text = f"flock on {path}: {error.strerror}"
            raise LockUnsupported(error.errno, text) from None
        # A client that is done with an earlier file may have removed the lock file
        # between our open and our flock.
        if _is_at(path, os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)


def supports_locks(folder: str) -> bool:
    """Whether ``flock`` works on files in ``folder``, which must be writable."""
    path = os.path.join(folder, f".{secrets.token_hex(16)}.lock")
    try:
        os.close(_create_lock(path))
    except LockUnsupported:
        return False
    finally:
        _remove(path)
    return True


def _say(descriptor: int, reason: str) -> None:
    """Make ``reason`` the content of a lock file.

    Its block is there from the start, so a disk that is full later takes a reason, too.
    """
    text = reason.encode("utf-8", "replace")[:_REASON_LIMIT]
    _write_all(descriptor, memoryview(text), 0)
    os.ftruncate(descriptor, len(text))


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + (1 << 30)], offset + done)
