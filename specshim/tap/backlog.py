"""A bound in seconds on rows that are computed but not yet written."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_PIECES = 32  # that the writers' pace is taken from: a few rounds of all threads


class Pace:
    """How fast pieces get written, by those of late; for one thread at a time.

    Only time in which something is being written counts, so that a pause of the
    producer is not taken for a slow disk.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy = self._since = 0.0
        self._active = 0
        self._done: deque[tuple[float, int]] = deque(maxlen=_PIECES)

    def begin(self) -> float:
        """A piece is being written from now on; returns what :meth:`end` takes."""
        begun = self._now()
        if not self._active:
            self._since = self._clock()
        self._active += 1
        return begun

    def end(self, begun: float, size: int) -> None:
        """The piece is written, or given up."""
        self._busy = self._now()
        self._since = self._clock()
        self._active -= 1
        self._done.append((begun, size))

    def _now(self) -> float:
        return self._busy + (self._clock() - self._since if self._active else 0.0)

    def seconds(self, size: int) -> float:
        """What ``size`` bytes will take; 0 before anything is written, as nothing is
        known, and infinitely long while the first pieces are."""
        if not self._done:
            return float("inf") if self._active else 0.0
        spent = self._now() - min(begun for begun, _ in self._done)
        return size * spent / max(1, sum(done for _, done in self._done))


@dataclass
class _Held:
    """Rows on their way: since when, and bytes that are not written yet."""

    since: float
    left: int


class Backlog:
    """Makes the producer wait instead of letting unwritten rows pile up.

    Args:
        max_seconds: age of the oldest unwritten rows, and what writing all of them
            takes at the writers' pace. The clients of speculators 0.6 to 0.9 give up on
            a lock after 10 s, so rows must not get that old.
    """

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._held: dict[int, _Held] = {}  # the oldest first
        self._next = 0
        self._pace = Pace()
        self._changed = threading.Condition()

    @property
    def bytes(self) -> int:
        """Unwritten bytes now."""
        with self._changed:
            return self._left()

    def _left(self) -> int:
        return sum(held.left for held in self._held.values())

    def _has_room(self, size: int) -> bool:
        if not self._held:
            return True
        oldest = next(iter(self._held.values()))
        if time.monotonic() - oldest.since >= self._max_seconds:
            return False
        return self._pace.seconds(self._left() + size) <= self._max_seconds

    def admit(self, size: int) -> int:
        """Wait for room, then hold ``size`` bytes; returns the ticket to release."""
        return self.admit_all([size])[0]

    def admit_all(self, sizes: Sequence[int]) -> list[int]:
        """:meth:`admit` for several at once, none of which waits for another."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(sum(sizes)))
            first, self._next = self._next, self._next + len(sizes)
            tickets = list(range(first, self._next))
            now = time.monotonic()
            for ticket, size in zip(tickets, sizes, strict=True):
                self._held[ticket] = _Held(now, size)
            return tickets

    @contextmanager
    def writing(self, ticket: int, size: int) -> Iterator[None]:
        """Around the writing of ``size`` of the ticket's bytes."""
        with self._changed:
            begun = self._pace.begin()
        try:
            yield
        finally:
            with self._changed:
                self._pace.end(begun, size)
                held = self._held.get(ticket)
                if held is not None:
                    held.left = max(0, held.left - size)
                self._changed.notify_all()

    def release(self, ticket: int) -> None:
        """The ticket's rows are written, or given up."""
        with self._changed:
            self._held.pop(ticket, None)
            self._changed.notify_all()
