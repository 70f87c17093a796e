"""Rows of samples in the capture buffer, and writing them once they are on the host."""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from specshim.tap.backlog import Backlog
from specshim.tap.outgoing import OutgoingSample
from specshim.tap.snapshot import HostRows

logger = logging.getLogger("vllm.specshim")

_NOT_TAPPED = (
    "the taps did not run exactly once in the forward that computed its rows, so what "
    "the buffer holds is not this request's; was a compiled graph without taps reused? "
    "Remove vLLM's compile cache and restart the server"
)


@dataclass(frozen=True)
class Piece:
    """Rows of a sample in the capture buffer; ``last``: no others will come."""

    sample: OutgoingSample
    start: int  # token of the sample
    row: int  # of the buffer
    count: int
    last: bool


def within(end: int, left: deque[Piece]) -> list[Piece]:
    """Take what lies before row ``end`` off ``left``, which is in order."""
    found = []
    while left and left[0].row < end:
        piece = left.popleft()
        count = min(piece.count, end - piece.row)
        if count < piece.count:
            piece.sample.add()
            rest = replace(
                piece,
                start=piece.start + count,
                row=piece.row + count,
                count=piece.count - count,
            )
            left.appendleft(rest)
            piece = replace(piece, count=count, last=False)
        found.append(piece)
    return found


class Countdown:
    """Gives rows back, and their ticket, once all groups of pieces are written."""

    def __init__(
        self, count: int, rows: HostRows, backlog: Backlog, ticket: int
    ) -> None:
        self._left = count
        self._rows = rows
        self._backlog = backlog
        self._ticket = ticket
        self._lock = threading.Lock()

    def writing(self, size: int) -> AbstractContextManager[None]:
        """Around the writing of a piece of so many bytes."""
        return self._backlog.writing(self._ticket, size)

    def one_done(self, _: Future[None] | None) -> None:
        """One more group is written, or given up."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._rows.give_back()
            self._backlog.release(self._ticket)


def write_pieces(pieces: list[Piece], rows: HostRows, countdown: Countdown) -> None:
    for piece in pieces:
        try:
            _write_piece(piece, rows, countdown)
        except Exception:  # of a sample's end; the others shall not suffer
            logger.exception("specshim: the end of a sample failed")


def _write_piece(piece: Piece, rows: HostRows, countdown: Countdown) -> None:
    failure = None
    try:
        rows.wait()
        if rows.tapped_once():
            data = rows.bytes_of(piece.row, piece.count)
            with countdown.writing(len(data)):
                piece.sample.write(piece.start, data)
        else:
            failure = _NOT_TAPPED
    except Exception as error:
        failure = f"its rows could not be written: {error}"
    piece.sample.piece_done(failure)
