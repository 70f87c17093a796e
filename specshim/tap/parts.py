"""A file that several pipeline stages write, and the last of them completes.

Each stage opens the same temporary file, whose name the scheduler chose, and writes its
columns of every row at their final place. Until the header takes that place, the file
begins with one mark per stage: nothing, "its part is there", or why it is not. A stage
holds a shared flock of the file until it has set its mark, so the last one, which has
the lock file too, waits for the others by asking for an exclusive one; the kernel
answers where a stage is killed. Without flock, files are completed before the response
leaves, and vLLM waits for all stages itself.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass

from specshim.tap.folder import Folder

MARK_BYTES = 512  # a mark: one byte, then a reason
_DONE, _FAILED = b"+", b"-"


class PartMissing(OSError):
    """A stage has not written its part of a sample; the message says which, and why."""


@dataclass(frozen=True)
class Share:
    """What one stage contributes to each file.

    Attributes:
        rank: the stage.
        others: the ranks of the other stages that contribute.
        columns: the slots of a row that are this stage's, ascending.
    """

    rank: int
    others: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def completes(self) -> bool:
        """Whether this stage completes the files: the last one that contributes.

        Its forward is the last of a step, so it has the least to wait for.
        """
        return self.rank > max(self.others)

    @property
    def marks(self) -> int:
        """Bytes at the start of a file that the marks take."""
        return MARK_BYTES * (1 + max(self.rank, *self.others))

    def runs(self) -> list[tuple[int, int, int]]:
        """Columns that are neighbours: (slot in the row, column of ours, how many)."""
        found: list[tuple[int, int, int]] = []
        for column, slot in enumerate(self.columns):
            if found and slot == found[-1][0] + found[-1][2]:
                found[-1] = (*found[-1][:2], found[-1][2] + 1)
            else:
                found.append((slot, column, 1))
        return found


def mark_done(descriptor: int, rank: int) -> None:
    """This stage's part is written; OSError where even that cannot be said."""
    _mark(descriptor, rank, _DONE)


def mark_failed(descriptor: int, rank: int, reason: str) -> None:
    """This stage's part will not come. No mark, where that fails, says as much."""
    text = reason.encode("utf-8", "replace")[: MARK_BYTES - 2]
    with suppress(OSError):
        _mark(descriptor, rank, _FAILED + text + b"\0")


def _mark(descriptor: int, rank: int, data: bytes) -> None:
    if os.pwrite(descriptor, data, rank * MARK_BYTES) != len(data):
        raise OSError("the mark of a pipeline stage could not be written")


def await_others(folder: Folder, name: str, descriptor: int, share: Share) -> None:
    """Wait until every other stage has set its mark or is gone; then read the marks.

    Raises:
        PartMissing: there is a part that will not come.
    """
    with suppress(OSError):  # no flock: they are done, or will not come
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        # NFS shows what others wrote to who opens the file after they closed it.
        fresh = folder.open_same(name, descriptor)
    except OSError:
        fresh = os.dup(descriptor)
    try:
        marks = {r: os.pread(fresh, MARK_BYTES, r * MARK_BYTES) for r in share.others}
    finally:
        os.close(fresh)
    for rank, mark in marks.items():
        if not mark.startswith(_DONE):
            raise PartMissing(f"pipeline stage {rank}: {_why(mark)}")


def _why(mark: bytes) -> str:
    if mark.startswith(_FAILED):
        return mark[1:].split(b"\0")[0].decode("utf-8", "replace")
    return "it ended before its layers were written"
