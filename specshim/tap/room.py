"""A bound on the host memory in which samples are put together, shared by writers."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Room:
    """Bytes for samples; the writer threads that need more wait where that helps.

    It helps while some sample is leaving (all its rows are with the writers, so it ends
    by itself) and a thread is left to store it. Incomplete samples may be waiting for
    the forward's thread, which may be waiting for these writers: nobody waits for them.

    Args:
        max_bytes: the bound.
        writers: number of threads that call :meth:`take`.
    """

    def __init__(self, max_bytes: int, writers: int) -> None:
        self.max_bytes = max_bytes
        self._writers = writers
        self._used = 0
        self._leaving: set[Hashable] = set()
        self._takers: list[Hashable] = []
        self._blocked = 0
        self._changed = threading.Condition()

    @property
    def bytes(self) -> int:
        """Bytes reserved now."""
        with self._changed:
            return self._used

    def take(self, sample: Hashable, size: int) -> None:
        """Reserve ``size`` bytes for ``sample``; one call at a time per sample.

        Raises:
            MemoryError: there is no room, and no use in waiting for it.
        """
        with self._changed:
            self._takers.append(sample)
            self._block(1)
            try:
                self._changed.wait_for(lambda: self._fits(size) or self._is_stuck())
            finally:
                self._takers.remove(sample)
                self._block(-1)
            if not self._fits(size):
                raise MemoryError(
                    f"the samples under way need more than {self.max_bytes} bytes of "
                    "memory; raise max_buffer_bytes in kv_connector_extra_config or "
                    "lower --max-num-seqs"
                )
            self._used += size

    def _fits(self, size: int) -> bool:
        return self._used + size <= self.max_bytes

    def _is_stuck(self) -> bool:
        nobody_leaves = self._leaving.issubset(self._takers)
        return nobody_leaves or self._blocked >= self._writers

    def _block(self, threads: int) -> None:
        self._blocked += threads
        self._changed.notify_all()  # others may be stuck now

    @contextmanager
    def turn(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a sample's lock, whose holder may be waiting for room."""
        if not lock.acquire(blocking=False):
            with self._changed:
                self._block(1)
            lock.acquire()
            with self._changed:
                self._block(-1)
        try:
            yield
        finally:
            lock.release()

    def leaving(self, sample: Hashable) -> None:
        """The sample's last rows are with the writers."""
        with self._changed:
            self._leaving.add(sample)

    def left(self, sample: Hashable) -> None:
        """The sample is stored or given up."""
        with self._changed:
            self._leaving.discard(sample)
            self._changed.notify_all()

    def release(self, size: int) -> None:
        """Give back what was taken."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()
