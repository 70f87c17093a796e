"""Files that are opened on a thread of their own, so that the forward never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from specshim.tap.sink import SampleWriter


class Opening:
    """The writer of a sample that is still being opened; see :class:`SampleWriter`.

    Creating a file takes a dozen system calls, each of which lets go of the GIL. Where
    another thread of the process is busy (vLLM's engine core decodes requests in one),
    each takes up to 5 ms to get it back, and the next step starts so much later.

    All but :meth:`open` wait until the file is open. Where that failed, ``write`` and
    ``commit`` raise and the others do nothing: there is nothing to be undone.
    """

    def __init__(self) -> None:
        self._tried = threading.Event()
        self._writer: SampleWriter | None = None

    def open(
        self, opening: Callable[[], SampleWriter], failed: Callable[[str], None]
    ) -> None:
        """Open it, or say why that is not possible."""
        if self._tried.is_set():  # given up
            return
        try:
            self._writer = opening()
        except Exception as error:  # whatever it is, the server lives
            failed(str(error))
        finally:
            self._tried.set()

    def give_up(self) -> None:
        """It will not be opened."""
        self._tried.set()

    def wait(self) -> SampleWriter | None:
        """Wait until that is so; None where it could not be opened."""
        self._tried.wait()
        return self._writer

    def _opened(self) -> SampleWriter:
        writer = self.wait()
        if writer is None:
            raise OSError("it could not be opened")
        return writer

    def write(self, start: int, rows: memoryview) -> None:
        self._opened().write(start, rows)

    def ending(self) -> None:
        """Nothing to do: who opens files so has no use for it."""

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        self._opened().commit(rows, token_ids)

    def abort(self, reason: str = "") -> None:
        writer = self.wait()
        if writer is not None:
            writer.abort(reason)

    def report(self, reason: str) -> None:
        writer = self.wait()
        if writer is not None:
            writer.report(reason)

    def discard(self) -> None:
        writer = self.wait()
        if writer is not None:
            writer.discard()
