"""The worker's half: rows of each step go from the capture buffer to the sink."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from specshim.tap.backlog import Backlog
from specshim.tap.opening import Opening
from specshim.tap.outgoing import Job, OutgoingSample
from specshim.tap.pieces import Countdown, Piece, within, write_pieces
from specshim.tap.rows import RowsUnknown, batch_rows
from specshim.tap.samples import Closed, Opened, StepSamples, log_failure, remember
from specshim.tap.sink import SampleWriter, Sink
from specshim.tap.snapshot import HostRows, Snapshots
from specshim.tap.taps import Taps

_WITHDRAWABLE = 1024  # samples whose request may still turn out to have been left


@dataclass(frozen=True)
class WorkerSettings:
    """Bounds of the writing side: ``kv_connector_extra_config`` in docs/routes.md."""

    threads: int = 8
    max_backlog_bytes: int = 2 << 30
    max_backlog_seconds: float = 4.0
    sync: bool = False
    path_wait_seconds: float = 5.0  # for the sample before on the same path
    early: bool = False  # a pipeline stage that leaves its samples to a later one


class TapWorker:
    """Follows the steps of the worker that owns the rows.

    That is tensor-parallel rank 0, in each stage of a pipeline.

    Args:
        taps: of its model.
        sink: where samples go.
        settings: bounds of the writing side.
        opens_later: whether who tells clients of a sample calls :meth:`wait_for_file`
            before; then the forward's thread need not wait for files to be opened.
    """

    def __init__(
        self,
        taps: Taps,
        sink: Sink,
        settings: WorkerSettings,
        opens_later: Callable[[], bool] = lambda: False,
    ) -> None:
        self._taps = taps
        self._sink = sink
        self._settings = settings
        self._early = settings.early
        self._snapshots = Snapshots(taps, settings.max_backlog_bytes)
        self._backlog = Backlog(settings.max_backlog_seconds)
        self._samples: dict[str, OutgoingSample] = {}
        self._by_path: WeakValueDictionary[str, OutgoingSample] = WeakValueDictionary()
        self._told: OrderedDict[int, OutgoingSample] = OrderedDict()  # the latest
        self._failed: deque[tuple[int, str]] = deque()  # appended to by all threads
        self._opens_later = opens_later
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="specshim-opener")
        self._pool = ThreadPoolExecutor(
            settings.threads,
            thread_name_prefix="specshim-writer",
            initializer=self._snapshots.use_device,
        )
        _start(self._opener, 1)  # now: later there may be no more threads, and
        _start(self._pool, settings.threads)  # submit would raise with a job queued

    def begin(self, step: StepSamples) -> None:
        """Before a forward: the taps have not run yet.

        An earlier stage of a pipeline takes up its samples now, so that the one that
        completes them finds it there. That one's forward comes after this; what the
        stages do after their forwards has no order.
        """
        self._taps.runs.zero_()
        if self._early:
            self._admit(step)

    def step(self, step: StepSamples) -> None:
        """After a step's forward, or in a step without one."""
        if not self._early:
            self._admit(step)
        try:
            completed = self._record(step)
        except Exception as error:  # the samples of this step fail, the server lives
            completed = []
            for request_id in step.scheduled:
                self.drop(request_id, _not_taken(error))
        if self._settings.sync:
            for sample in completed:
                sample.done.wait()

    def _admit(self, step: StepSamples) -> None:
        """Take note of the samples that end in this step, and of those that begin.

        What has ended comes first: its path may be used again in the same step, and
        so may its id. The scheduler's half never notes the end of what it opens in
        the same step, and all rows of what has ended came in earlier ones.
        """
        for request_id, closed in step.closed.items():
            self.close(request_id, closed)
        for request_id, reason in step.dropped.items():
            self.discard(request_id, reason)
        for serial in step.withdrawn:
            told = self._told.pop(serial, None)
            if told is not None:
                told.discard("its client left while the answer was on its way")
        for request_id, opened in step.opened.items():
            self._open(request_id, opened)

    def _open(self, request_id: str, opened: Opened) -> None:
        earlier = self._by_path.get(opened.path)
        if earlier is not None:  # a path that clients choose may be in use still
            seconds = self._settings.path_wait_seconds
            if not (earlier.ended and earlier.done.wait(seconds)):
                self._refuse(
                    request_id,
                    opened,
                    f"the sample before it on {opened.path} is not complete yet; name "
                    "another hidden_states_path",
                )
                return
        opening = partial(
            self._sink.open,
            opened.path,
            announced=not self._settings.sync,
            rows=opened.rows,
            temporary=opened.temporary,
        )
        at_once = self._sink.slow or self._settings.sync or self._early
        later = not at_once and self._opens_later()
        try:
            writer: SampleWriter = Opening() if later else opening()
        except Exception as error:  # whatever it is, the server lives
            self._refuse(request_id, opened, str(error))
            return
        run = self._run_later if self._sink.slow else _run_now
        sample = OutgoingSample(request_id, opened, writer, run, self._note_failure)
        self._samples[request_id] = self._by_path[opened.path] = sample
        if isinstance(writer, Opening):
            try:
                self._opener.submit(writer.open, opening, sample.fail)
            except BaseException as error:  # SystemExit too: a server that stops
                writer.give_up()
                sample.end(f"its file could not be opened: {error}")
                if not isinstance(error, Exception):
                    raise

    def wait_for_file(self, request_id: str) -> None:
        """Before a client is told of a sample: its lock is there, or its failure known.

        For the forward's thread.
        """
        sample = self._samples.get(request_id)
        if sample is not None:
            sample.wait_until_open()

    def _refuse(self, request_id: str, opened: Opened, reason: str) -> None:
        log_failure(request_id, reason)
        self._note_failure(opened.serial, reason)

    def _note_failure(self, serial: int, reason: str) -> None:
        self._failed.append((serial, reason))

    def failures(self) -> dict[int, str]:
        """News for the scheduler since the last call: failed samples by serial."""
        news: dict[int, str] = {}
        while self._failed:
            serial, reason = self._failed.popleft()
            news[serial] = reason
        return news

    def _run_later(self, job: Job, before: Job | None) -> None:
        """On a writer's thread; until then it is part of the backlog."""
        ticket = self._backlog.admit(0)
        if before is not None:
            before()
        running = self._pool.submit(job)
        running.add_done_callback(lambda _: self._backlog.release(ticket))

    def _record(self, step: StepSamples) -> list[OutgoingSample]:
        """Send this step's rows on their way; returns the samples now fully covered."""
        known = (self._samples.get(request_id) for request_id in step.scheduled)
        if all(sample is None or sample.ended for sample in known):
            return []  # as in every step that only decodes
        try:
            first_rows = dict(batch_rows(self._taps.runner, step.counts))
        except RowsUnknown as error:
            for request_id in step.scheduled:
                self.drop(request_id, str(error))
            return []
        pieces = []
        completed = []
        for request_id, scheduled in step.scheduled.items():
            sample = self._samples.get(request_id)
            if sample is None or sample.ended:
                continue
            start, count = scheduled.start, scheduled.count
            if start > sample.covered:
                self.drop(request_id, f"tokens {sample.covered} to {start} are missing")
                continue
            end = start + count
            wanted = end if sample.rows is None else min(end, sample.rows)
            sample.covered = max(sample.covered, wanted)
            last = sample.is_covered()
            if last:
                completed.append(sample)
            if wanted > start:
                row = first_rows[request_id]
                pieces.append(Piece(sample, start, row, wanted - start, last))
            elif last:
                sample.end()
        if pieces:
            self._submit(pieces)
        return completed

    def _submit(self, pieces: list[Piece]) -> None:
        """Copy the pieces' rows to the host and give them to the writers.

        That happens part by part, as there is memory.
        """
        left = deque(sorted(pieces, key=lambda piece: piece.row))
        first, last = left[0].row, max(piece.row + piece.count for piece in pieces)
        for piece in pieces:  # not complete before the piece's last part is written
            piece.sample.add()
        try:
            parts = self._snapshots.take(first, last)
            whole = self._sink.slow and self._snapshots.memory.holds(last - first)
            for some in [list(parts)] if whole else ([rows] for rows in parts):
                tickets = self._admitted(some)
                if whole:  # before a writer sees rows of this step, and needs room
                    self._end_those_that_are_complete(pieces)
                for rows, ticket in zip(some, tickets, strict=True):
                    self._hand_on(rows, ticket, within(rows.last, left))
        except BaseException as error:  # SystemExit too: a server that stops
            for piece in left:  # they never reached a writer
                piece.sample.piece_done(_not_taken(error))
            raise

    def _admitted(self, some: list[HostRows]) -> list[int]:
        try:
            return self._backlog.admit_all([rows.bytes for rows in some])
        except BaseException:
            for rows in some:
                rows.give_back()
            raise

    @staticmethod
    def _end_those_that_are_complete(pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.last:
                piece.sample.end()

    def _hand_on(self, rows: HostRows, ticket: int, pieces: list[Piece]) -> None:
        """Give ``pieces``, which ``rows`` hold, to the writers."""
        if not pieces:  # rows of others lay between
            rows.give_back()
            self._backlog.release(ticket)
            return
        # Of a slow sink each by itself: it may have to wait for a later one.
        most = len(pieces) if self._sink.slow else self._settings.threads
        groups = [pieces[i::most] for i in range(min(most, len(pieces)))]
        countdown = Countdown(len(groups), rows, self._backlog, ticket)
        self._end_those_that_are_complete(pieces)  # before a writer sees their rows
        started = 0
        try:
            for group in groups:
                job = self._pool.submit(write_pieces, group, rows, countdown)
                started += 1
                job.add_done_callback(countdown.one_done)
        except BaseException as error:
            for _ in groups[started:]:
                countdown.one_done(None)
            for piece in itertools.chain(*groups[started:]):
                piece.sample.piece_done(_not_taken(error))
            raise

    def close(self, request_id: str, closed: Closed) -> None:
        """The client is told of the sample, whose size is known now at the latest."""
        sample = self._samples.pop(request_id, None)
        if sample is None:
            return
        if not sample.ended:
            sample.rows, sample.token_ids = closed.rows, closed.token_ids
            short = f"only {sample.covered} of {closed.rows} rows arrived"
            sample.end(short if sample.covered < closed.rows else None)
        sample.tell()
        remember(self._told, sample.serial, sample, _WITHDRAWABLE)

    def drop(self, request_id: str, reason: str) -> None:
        """The sample has failed, and the log says so.

        It is kept until its request ends: then the client is told the reason, or it
        has gone and nothing may be left for it.
        """
        sample = self._samples.get(request_id)
        if sample is not None:
            sample.end(reason)

    def discard(self, request_id: str, reason: str) -> None:
        """Nobody will ask for the sample: leave nothing of it, and say nothing."""
        sample = self._samples.pop(request_id, None)
        if sample is not None:
            sample.discard(reason)

    def shutdown(self) -> None:
        """Finish what is under way; leave nothing of what still lacks rows."""
        for sample in self._samples.values():
            sample.stop("the server stopped before it was complete")
        self._samples.clear()
        self._opener.shutdown(wait=True)
        self._pool.shutdown(wait=True)


def _not_taken(error: BaseException) -> str:
    return f"its rows could not be taken: {error}"


def _start(pool: ThreadPoolExecutor, threads: int) -> None:
    """Have all threads of a pool run.

    Raises:
        RuntimeError: the system gives no more.
    """
    all_run = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(all_run.wait, 60)
    all_run.wait(60)


def _run_now(job: Job, before: Job | None) -> None:
    job()
