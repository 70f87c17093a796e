"""One sample on its way from the forward's thread through the writers to the sink."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from specshim.tap.opening import Opening
from specshim.tap.samples import Opened, log_failure
from specshim.tap.sink import SampleWriter

Job: TypeAlias = Callable[[], None]
Run: TypeAlias = "Callable[[Job, Job | None], None]"
"""Runs the first; the second comes before, as soon as nothing keeps the first back."""


class OutgoingSample:
    """One sample being written. The forward's thread adds, writer threads finish."""

    def __init__(
        self,
        request_id: str,
        opened: Opened,
        writer: SampleWriter,
        run: Run,
        on_failure: Callable[[int, str], None],
    ) -> None:
        self.request_id = request_id
        self.rows = opened.rows
        self.token_ids = opened.token_ids
        self.covered = 0
        self.done = threading.Event()
        self._writer = writer
        self._run = run  # what the forward's thread has to do at the end
        self.serial = opened.serial
        self._on_failure = on_failure  # called once, by any thread
        self._lock = threading.Lock()
        self._pending = 0
        self._ended = False  # set by the forward's thread alone
        self._finishing = False
        self._finished = False
        self._discarded = False
        self._stopped = False
        self._told = False
        self._failure: str | None = None

    def is_covered(self) -> bool:
        """Whether all its rows have been handed on; unknown sizes never are."""
        return self.rows is not None and self.covered >= self.rows

    @property
    def ended(self) -> bool:
        """Whether no more rows are wanted; for the forward's thread."""
        return self._ended

    def wait_until_open(self) -> None:
        """Return when the sample's file is there, or is known to fail."""
        if isinstance(self._writer, Opening):
            self._writer.wait()

    def add(self) -> None:
        """One more piece is on its way."""
        with self._lock:
            self._pending += 1

    def piece_done(self, failure: str | None) -> None:
        """A piece is written, or could not be."""
        with self._lock:
            self._pending -= 1
            self._fail(failure)
            last = self._take_end()
        if last:
            self._finish()

    def end(self, failure: str | None = None) -> None:
        """No more rows: finish as soon as the pieces under way are done."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._fail(failure)
            last = self._take_end()
            if not last:
                self._writer.ending()  # under the lock, so before the last piece's end
        if last:
            self._run(self._finish, self._writer.ending)

    def fail(self, reason: str) -> None:
        """There will be no sample, whatever comes; for any thread."""
        with self._lock:
            self._fail(reason)

    def write(self, start: int, piece: memoryview) -> None:
        """Hand rows to the sink."""
        self._writer.write(start, piece)

    def discard(self, reason: str) -> None:
        """Nobody will be told of this sample: leave nothing behind, complete or not."""
        with self._lock:
            self._discarded = True
            if not self._finishing:
                self._fail(reason)
            finished = self._finished
        if finished:
            self._run(self._writer.discard, None)
        self.end(reason)

    def stop(self, reason: str) -> None:
        """The server stops: what is whole, or will be, stays; of the rest, nothing."""
        with self._lock:
            self._stopped = True
            lost = not self._ended or self._failure is not None
        if lost:
            self.discard(reason)

    def _fail(self, reason: str | None) -> None:
        """Note why there will be no sample, if that is so and not known yet."""
        if reason is None or self._failure is not None:
            return
        self._failure = reason
        if self._discarded:
            log_failure(self.request_id, reason, logging.DEBUG)
        else:
            log_failure(self.request_id, reason)
            self._on_failure(self.serial, reason)

    def tell(self) -> None:
        """The client knows the handle; if the sample fails, it is to learn why."""
        with self._lock:
            self._told = True
            failed = self._finished and self._failure is not None
        if failed:
            self._run(self._report, None)

    def _report(self) -> None:
        assert self._failure is not None
        self._writer.report(self._failure)

    def _take_end(self) -> bool:
        """Under the lock: whether the caller is the one to finish the sample."""
        last = self._ended and self._pending == 0 and not self._finishing
        self._finishing = self._finishing or last
        return last

    def _finish(self) -> None:
        """Commit or abort; called once, by whichever thread ends the sample."""
        if self._failure is None:
            try:
                assert self.rows is not None
                self._writer.commit(self.rows, self.token_ids)
            except Exception as error:  # whatever it is, the sample has failed
                with self._lock:
                    self._fail(f"it could not be completed: {error}")
        if self._failure is not None:
            self._writer.abort(self._failure)
        self.token_ids = ()  # they are many, and the sample may be kept for a while
        with self._lock:
            self._finished = True
            failed = self._failure is not None
            unwanted, told = self._discarded, self._told
            lost = failed and self._stopped and not told
        if unwanted or lost:
            self._writer.discard()
        elif told and failed:
            self._report()
        self.done.set()  # last: then its path may be used again
