"""Rows of one step on their way to the host: snapshot, side stream, pinned copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from specshim.tap.host_memory import HostMemory, Part
from specshim.tap.taps import Taps

_STEPS = 3  # of full size: one is being computed, one copied, and one written


class HostRows:
    """Rows [first, last) of one step's capture buffer in host memory.

    What a GPU computed may be read only after :meth:`wait`, and all of it until
    :meth:`give_back`.

    Args:
        first: see above.
        part: where they are.
        runs: [slots], how often each tap ran.
        ready: returns when they are there.
        memory: what ``part`` is of.
    """

    def __init__(
        self,
        first: int,
        part: Part,
        runs: torch.Tensor,
        ready: Callable[[], None],
        memory: HostMemory,
    ) -> None:
        self.first, self.last = first, first + len(part.rows)
        self.bytes = int(part.rows.nbytes)
        self._part = part
        self._runs = runs
        self._ready = ready
        self._memory = memory
        self._tapped_once: bool | None = None

    def wait(self) -> None:
        """Block until the copy has arrived; releases the GIL meanwhile."""
        self._ready()

    def tapped_once(self) -> bool:
        """Whether every tap ran exactly once in the forward of these rows."""
        if self._tapped_once is None:
            self._tapped_once = all(count == 1 for count in self._runs.tolist())
        return self._tapped_once

    def bytes_of(self, row: int, count: int) -> memoryview:
        """The bytes of ``count`` rows from row ``row`` of the buffer on."""
        start = row - self.first
        rows = self._part.rows[start : start + count]
        return memoryview(rows.view(torch.uint8).reshape(-1).numpy())

    def give_back(self) -> None:
        """Nobody reads them any more; to be called once."""
        self._memory.give_back(self._part)


class Snapshots:
    """Takes a step's rows off the capture buffer before the next forward overwrites it.

    On an accelerator the rows go to the staging buffer on the forward's stream, and
    from there to pinned memory on a side stream, so that the forward never waits for
    the bus.

    Args:
        taps: whose buffers.
        max_bytes: of the host memory.
    """

    def __init__(self, taps: Taps, max_bytes: int) -> None:
        self._rows, self._runs = taps.rows, taps.runs
        self._stage, self._stage_runs = taps.stage_rows, taps.stage_runs
        self._device: Any = None
        if self._rows.device.type != "cpu":
            self._device = torch.get_device_module(self._rows.device)
            self._stream = self._device.Stream()
            self._copied: Any = None
        pinned = self._device is not None
        self.memory = HostMemory(self._rows, max_bytes, pinned=pinned)
        self.memory.allocate(_STEPS * len(self._rows))

    def use_device(self) -> None:
        """Make the rows' device the calling thread's; else it would wake device 0."""
        if self._device is not None:
            self._device.set_device(self._rows.device)

    def take(self, first: int, last: int) -> Iterator[HostRows]:
        """Copy rows [first, last) and the run counts, as the forward left them.

        They come in as many parts as the memory gives, in order; waits for memory
        between them. The next step's must not be taken before the last one is here.
        """
        if self._device is None:
            return self._take_on_cpu(first, last)
        return self._take_on_device(first, last)

    def _take_on_cpu(self, first: int, last: int) -> Iterator[HostRows]:
        runs = self._runs.clone()
        for start, part in self._parts(first, last):
            with self._given_back_if_it_fails(part):
                part.rows.copy_(self._rows[start : start + len(part.rows)])
            yield HostRows(start, part, runs, lambda: None, self.memory)

    def _take_on_device(self, first: int, last: int) -> Iterator[HostRows]:
        assert self._stage is not None and self._stage_runs is not None
        current = self._device.current_stream()
        if self._copied is not None:
            current.wait_event(self._copied)
        self._stage[: last - first].copy_(self._rows[first:last])
        self._stage_runs.copy_(self._runs)
        staged = self._device.Event()
        staged.record(current)
        runs = torch.empty(self._runs.shape, dtype=self._runs.dtype, pin_memory=True)
        with self._device.stream(self._stream):
            self._stream.wait_event(staged)
            runs.copy_(self._stage_runs, non_blocking=True)
        for start, part in self._parts(first, last):
            at, stream = start - first, self._device.stream(self._stream)
            with self._given_back_if_it_fails(part), stream:
                source = self._stage[at : at + len(part.rows)]
                part.rows.copy_(source, non_blocking=True)
                copied = self._device.Event()
                copied.record(self._stream)
            self._copied = copied
            yield HostRows(start, part, runs, copied.synchronize, self.memory)

    @contextmanager
    def _given_back_if_it_fails(self, part: Part) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.memory.give_back(part)
            raise

    def _parts(self, first: int, last: int) -> Iterator[tuple[int, Part]]:
        while first < last:
            part = self.memory.take(last - first)
            yield first, part
            first += len(part.rows)
