"""Rows of one step on their way to the host: snapshot, side stream, pinned copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specshim.tap.taps import Taps


class HostRows:
    """Rows [first, last) of one step's capture buffer in host memory.

    ``rows`` [last - first, slots, hidden] and ``runs`` [slots] may be read only after
    :meth:`wait`.
    """

    def __init__(
        self, rows: torch.Tensor, runs: torch.Tensor, ready: Callable[[], None]
    ) -> None:
        self._rows = rows
        self._runs = runs
        self._ready = ready

    def wait(self) -> None:
        """Block until the copy has arrived; releases the GIL meanwhile."""
        self._ready()

    def tapped_once(self) -> bool:
        """Whether every tap ran exactly once in the forward of these rows."""
        return bool((self._runs == 1).all())

    def bytes_of(self, start: int, count: int) -> memoryview:
        """The bytes of ``count`` rows from row ``start`` of this copy on."""
        rows = self._rows[start : start + count].contiguous()
        return memoryview(rows.view(torch.uint8).reshape(-1).numpy())


class Snapshots:
    """Takes a step's rows off the capture buffer before the next forward overwrites it.

    On an accelerator the rows go to the staging buffer on the forward's stream, and
    from there to pinned memory on a side stream, so that the forward never waits for
    the bus.
    """

    def __init__(self, taps: Taps) -> None:
        self._rows, self._runs = taps.rows, taps.runs
        self._stage, self._stage_runs = taps.stage_rows, taps.stage_runs
        self._device: Any = None
        if self._rows.device.type != "cpu":
            self._device = torch.get_device_module(self._rows.device)
            self._stream = self._device.Stream()
            self._copied: Any = None

    def use_device(self) -> None:
        """Make the rows' device the calling thread's; else it would wake device 0."""
        if self._device is not None:
            self._device.set_device(self._rows.device)

    def host_bytes(self, count: int) -> int:
        """Host memory that a copy of ``count`` rows takes.

        torch rounds pinned memory up to a power of two.
        """
        size = int(count * self._rows.stride(0) * self._rows.element_size())
        if self._device is None:
            return size
        return 1 << max(0, size - 1).bit_length()

    def take(self, first: int, last: int) -> HostRows:
        """Copy rows [first, last) and the run counts, as the forward left them."""
        if self._device is None:  # the CPU has computed them already
            return HostRows(
                self._rows[first:last].clone(), self._runs.clone(), lambda: None
            )
        assert self._stage is not None and self._stage_runs is not None
        count = last - first
        current = self._device.current_stream()
        if self._copied is not None:
            current.wait_event(self._copied)
        self._stage[:count].copy_(self._rows[first:last])
        self._stage_runs.copy_(self._runs)
        staged = self._device.Event()
        staged.record(current)
        host = torch.empty(
            (count, *self._rows.shape[1:]), dtype=self._rows.dtype, pin_memory=True
        )
        host_runs = torch.empty(
            self._runs.shape, dtype=self._runs.dtype, pin_memory=True
        )
        with self._device.stream(self._stream):
            self._stream.wait_event(staged)
            host.copy_(self._stage[:count], non_blocking=True)
            host_runs.copy_(self._stage_runs, non_blocking=True)
            copied = self._device.Event()
            copied.record(self._stream)
        self._copied = copied
        return HostRows(host, host_runs, copied.synchronize)
