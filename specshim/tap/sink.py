"""Where samples go: the interface of a sink, and the file sink."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from specshim.tap.folder import Folder, Storage

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

    def abort(self, reason: str = "") -> None:
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
        self,
        handle: str,
        *,
        announced: bool,
        rows: int | None = None,
        temporary: str = "",
    ) -> SampleWriter:
        """Begin a sample of ``rows`` rows, None where only the end will tell.

        Args:
            handle: as the scheduler's half chose it.
            announced: a client may wait for it through its lock.
            rows: see above.
            temporary: the name under which pipeline stages share a file.
        """


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
        storage: the folder that all files lie below; None trusts the folder of each.
    """

    slow = False

    def __init__(
        self,
        slots: int,
        hidden: int,
        dtype: str,
        metadata: Mapping[str, str],
        lock: bool = True,
        storage: str | None = None,
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
        self._storage = None if storage is None else Storage(storage)
        self.base = pages(len(self.header(2**40)) + 8 + _TAILS)

    def folder_of(self, path: str) -> Folder:
        """The folder of a file, opened; OSError where that is not safe."""
        storage = self._storage or Storage(os.path.dirname(path))
        return storage.open(path)

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
        self,
        handle: str,
        *,
        announced: bool,
        rows: int | None = None,
        temporary: str = "",
    ) -> SampleWriter:
        """Create the temporary file, and the lock file where clients will wait."""
        return FileWriter(self, handle, lock=self._lock and announced)

    def put(self, descriptor: int, start: int, rows: memoryview) -> None:
        """Write consecutive rows, the first being row ``start``, at their place."""
        write_all(descriptor, rows, self.base + start * self.row_bytes)


def pages(size: int) -> int:
    """The smallest number of bytes in whole pages that ``size`` fits into."""
    return -(-size // _PAGE) * _PAGE


class FileWriter:
    """One safetensors file: a hidden temporary one, locked, until it is complete.

    Whatever lay under the final name is removed at the start, so that a client can
    never take an older sample for this one.
    """

    def __init__(self, sink: FileSink, path: str, *, lock: bool) -> None:
        self._sink = sink
        self._path = path
        self._name = os.path.basename(path)
        self._lock_name = f"{self._name}.lock"
        self._temporary = ""
        self._complete: os.stat_result | None = None
        self._locks = lock
        self._lock_fd = self._fd = -1
        self._folder = sink.folder_of(path)
        try:
            if lock:
                self._lock_fd = self._folder.lock(self._lock_name)
        except BaseException:
            self._folder.close()
            raise
        try:
            if lock:  # what a waiting client finds where this process is killed
                _say(self._lock_fd, _KILLED)
            self._folder.unlink(self._name)
            self._temporary, self._fd = self._create()
        except BaseException:  # a server that stops raises SystemExit anywhere
            self.discard()
            raise

    def _create(self) -> tuple[str, int]:
        """The temporary file, held: name, descriptor."""
        return self._folder.create_temporary()

    def write(self, start: int, rows: memoryview) -> None:
        """Write rows at their final place; see :class:`SampleWriter`."""
        self._sink.put(self._fd, start, rows)

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
        write_all(self._fd, memoryview(rest), end)
        os.ftruncate(self._fd, end + len(rest))
        size = self._sink.base - 8
        start = struct.pack("<Q", size) + header.ljust(size)
        write_all(self._fd, memoryview(start), 0)
        self._close()  # some file systems report a failed write only here
        found = self._folder.stat(self._temporary)
        self._folder.rename(self._temporary, self._name)
        self._complete = found
        self._unlock()
        self._folder.close()

    def abort(self, reason: str = "") -> None:
        """Remove the temporary file; a client that knows the path still waits."""
        with suppress(OSError):
            self._close()
        self._folder.remove(self._temporary)

    def report(self, reason: str) -> None:
        """Leave the reason in the lock file, which its reader removes, and let go.

        A reader that knows nothing of it finds the lock free and no file.
        """
        if self._lock_fd >= 0:
            with suppress(OSError):
                _say(self._lock_fd, reason)
        self._unlock()
        self._folder.close()

    def discard(self) -> None:
        """Remove the complete file, unless another took its name, and the lock."""
        with suppress(OSError):
            if self._folder.closed:
                self._folder = self._sink.folder_of(self._path)
            if self._complete is not None:
                self._folder.remove_unchanged(self._name, self._complete)
            if self._lock_fd >= 0:
                self._folder.remove_same(self._lock_name, self._lock_fd)
            elif self._locks:
                self._folder.remove_free_lock(self._lock_name)
        self._unlock()
        self._folder.close()

    def _close(self) -> None:
        descriptor, self._fd = self._fd, -1  # never twice: numbers are used again
        if descriptor >= 0:
            os.close(descriptor)

    def _unlock(self) -> None:
        descriptor, self._lock_fd = self._lock_fd, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


def _say(descriptor: int, reason: str) -> None:
    """Make ``reason`` the content of a lock file.

    Its block is there from the start, so a disk that is full later takes a reason, too.
    """
    text = reason.encode("utf-8", "replace")[:_REASON_LIMIT]
    write_all(descriptor, memoryview(text), 0)
    os.ftruncate(descriptor, len(text))


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + (1 << 30)], offset + done)
