"""A bound on rows that are computed but not yet written, in bytes and in seconds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict


class Backlog:
    """Makes the producer wait instead of letting unwritten rows pile up.

    Args:
        max_bytes: unwritten bytes in host memory.
        max_seconds: age of the oldest unwritten rows. The clients of speculators 0.6
            to 0.9 give up on a lock after 10 s, so rows must not get that old.
    """

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._held: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self._next = 0
        self._changed = threading.Condition()

    @property
    def bytes(self) -> int:
        """Unwritten bytes now."""
        with self._changed:
            return sum(size for _, size in self._held.values())

    def _has_room(self, size: int) -> bool:
        if not self._held:
            return True  # a step larger than the bound must pass all the same
        oldest, _ = next(iter(self._held.values()))
        young = time.monotonic() - oldest < self._max_seconds
        return (
            young and size + sum(n for _, n in self._held.values()) <= self._max_bytes
        )

    def admit(self, size: int) -> int:
        """Wait for room, then hold ``size`` bytes; returns the ticket to release."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size))
            ticket, self._next = self._next, self._next + 1
            self._held[ticket] = (time.monotonic(), size)
            return ticket

    def release(self, ticket: int) -> None:
        """The ticket's rows are written, or given up."""
        with self._changed:
            self._held.pop(ticket, None)
            self._changed.notify_all()
