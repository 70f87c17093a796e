"""The FP8 sink: files as hs_connectors' FP8 connector writes them, row by row."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import torch

from specshim.tap.hs_connectors import load
from specshim.tap.sink import FileSink, FileWriter, Tail

STORED = "float8_e4m3fn"
_BLOCK = 4 << 20  # elements that are quantised at a time: some 50 MiB of float32


class FP8Sink(FileSink):
    """Safetensors files with FP8 rows and, per token, the scales to undo that.

    hs_connectors' scales are a token's own, so rows are quantised block by block as
    they come, with its function; the scales alone (a few bytes per token) are kept in
    memory until the file is complete. Arguments as for :class:`FileSink`, ``dtype``
    being that of the recorded rows.

    Raises:
        TapRefused: hs_connectors is missing or too old.
    """

    def __init__(
        self,
        slots: int,
        hidden: int,
        dtype: str,
        metadata: Mapping[str, str],
        lock: bool = True,
        storage: str | None = None,
    ) -> None:
        super().__init__(slots, hidden, STORED, metadata, lock, storage)
        self.utils = load("fp8", "fp8_utils", "SCALES_KEY", "quantize_tensor_to_fp8")
        self.row_shape = (slots, hidden)
        self.rows_dtype: torch.dtype = getattr(torch, dtype)

    def open(
        self,
        handle: str,
        *,
        announced: bool,
        rows: int | None = None,
        temporary: str = "",
    ) -> FP8Writer:
        """As :meth:`FileSink.open`."""
        return FP8Writer(self, handle, lock=self._lock and announced, rows=rows or 0)


class FP8Writer(FileWriter):
    """One file; the lock protocol and the atomic rename are the file sink's."""

    _sink: FP8Sink

    def __init__(self, sink: FP8Sink, path: str, *, lock: bool, rows: int) -> None:
        super().__init__(sink, path, lock=lock)
        self._capacity = rows
        self._scales = torch.empty(0, 1, 1)  # 0: not written; real ones are positive
        self._guard = threading.Lock()

    def write(self, start: int, rows: memoryview) -> None:
        """Quantise rows and write them at their final place."""
        sink = self._sink
        states = torch.frombuffer(rows, dtype=sink.rows_dtype)
        states = states.view(-1, *sink.row_shape)
        for block in states.split(max(1, _BLOCK // states[0].numel())):
            packed, scales = sink.utils.quantize_tensor_to_fp8(block)
            _check(block, packed, scales)
            data = packed.contiguous().view(torch.uint8).reshape(-1).numpy()
            # A row and its scale change together: those of a preempted request that
            # was started over may come twice, and at the same time.
            with self._guard:
                super().write(start, memoryview(data))
                self._keep(start, scales)
            start += len(block)

    def _keep(self, start: int, scales: torch.Tensor) -> None:
        end = start + len(scales)
        if end > len(self._scales):
            larger = torch.zeros(
                max(end, self._capacity, 2 * len(self._scales)), *scales.shape[1:]
            )
            larger[: len(self._scales)] = self._scales
            self._scales = larger
        self._scales[start:end] = scales

    def tails(self, rows: int, token_ids: Sequence[int]) -> list[Tail]:
        """Token ids, then the scales, float32 [rows, ...] as they were returned."""
        scales = self._scales[:rows].contiguous()
        if len(scales) < rows or bool((scales == 0).any()):
            raise ValueError("some rows were never quantised")
        data = scales.view(torch.uint8).reshape(-1).numpy().tobytes()
        name, shape = self._sink.utils.SCALES_KEY, tuple(scales.shape)
        return [*super().tails(rows, token_ids), Tail(name, "F32", shape, data)]


def _check(block: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> None:
    if packed.dtype != getattr(torch, STORED) or packed.shape != block.shape:
        raise ValueError(
            f"hs_connectors quantised rows of shape {tuple(block.shape)} to "
            f"{packed.dtype} of shape {tuple(packed.shape)}"
        )
    if scales.dim() != block.dim() or len(scales) != len(block):
        raise ValueError(
            f"hs_connectors' scales of shape {tuple(scales.shape)} are not one per "
            "token, so rows cannot be quantised as they come"
        )
