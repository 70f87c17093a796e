"""The file sink of a pipeline stage: its columns of a file that all stages write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import Any

from specshim.tap.folder import Folder
from specshim.tap.parts import Share, await_others, mark_done, mark_failed
from specshim.tap.sink import FileSink, FileWriter, SampleWriter, pages, write_all


class StagedSink(FileSink):
    """Files as :class:`FileSink` makes them, of which this stage writes its ``share``.

    What is given to ``write`` are rows of its columns alone; ``slots`` counts those of
    all stages.
    """

    def __init__(self, *args: Any, share: Share, **options: Any) -> None:
        super().__init__(*args, **options)
        self.share = share
        self.slow = share.completes  # it may have to wait for the other stages
        self.base = max(self.base, pages(share.marks))

    def open(
        self,
        handle: str,
        *,
        announced: bool,
        rows: int | None = None,
        temporary: str = "",
    ) -> SampleWriter:
        """Join the file ``temporary``; who completes it makes its lock file, too."""
        if not self.share.completes:
            return PartWriter(self, handle, temporary)
        lock = self._lock and announced
        return CompletingWriter(self, handle, temporary, lock=lock)

    def put(self, descriptor: int, start: int, rows: memoryview) -> None:
        """Write this stage's columns of consecutive rows at their place."""
        place = self.base + start * self.row_bytes
        slot_bytes = self.row_bytes // self._shape[0]
        ours = slot_bytes * len(self.share.columns)
        runs = [tuple(n * slot_bytes for n in run) for run in self.share.runs()]
        for at in range(0, len(rows), ours):
            for slot, column, size in runs:
                piece = rows[at + column : at + column + size]
                write_all(descriptor, piece, place + slot)
            place += self.row_bytes


class CompletingWriter(FileWriter):
    """The last stage's part of a file; it completes the file once all parts are in."""

    def __init__(
        self, sink: StagedSink, path: str, temporary: str, *, lock: bool
    ) -> None:
        self._share = sink.share
        self._given = temporary
        super().__init__(sink, path, lock=lock)

    def _create(self) -> tuple[str, int]:
        return self._given, self._folder.join_temporary(self._given)

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        """As :meth:`FileWriter.commit`, after the other stages.

        Raises:
            PartMissing: one of them has not written its part.
        """
        await_others(self._folder, self._temporary, self._fd, self._share)
        super().commit(rows, token_ids)


class PartWriter:
    """An earlier stage's part of a file; see :class:`SampleWriter`."""

    def __init__(self, sink: StagedSink, path: str, temporary: str) -> None:
        self._sink = sink
        self._path = path
        self._share = sink.share
        self._temporary = temporary
        with self._folder() as folder:
            self._fd = folder.join_temporary(temporary)

    def _folder(self) -> AbstractContextManager[Folder]:
        return closing(self._sink.folder_of(self._path))

    def write(self, start: int, rows: memoryview) -> None:
        """Write this stage's columns of rows at their final place."""
        self._sink.put(self._fd, start, rows)

    def ending(self) -> None:
        """Nothing to do: rows are in the file already."""

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        """Say that this part is there, and let go of the file."""
        mark_done(self._fd, self._share.rank)
        self._close()

    def abort(self, reason: str = "") -> None:
        """Say why this part will not come, and let go of the file."""
        if self._fd >= 0:
            mark_failed(self._fd, self._share.rank, reason)
        with suppress(OSError):
            self._close()

    def report(self, reason: str) -> None:
        """Nothing to do: the stage that completes the file has the lock file."""

    def discard(self) -> None:
        """Remove the shared file, if it is still one; it has no other name yet."""
        with suppress(OSError), self._folder() as folder:
            folder.remove(self._temporary)

    def _close(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)
