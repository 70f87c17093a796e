"""The Mooncake sink: samples in a distributed store, by hs_connectors' own code."""

from __future__ import annotations

import inspect
import logging
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from specshim.tap.hs_connectors import load
from specshim.tap.layers import TapRefused
from specshim.tap.room import Room

logger = logging.getLogger("vllm.specshim")

MAX_BUFFER_BYTES = 4 << 30
"""Default bound of the host memory in which samples are put together."""

WRITERS = 4
"""Default number of writer threads; hs_connectors' own connector has as many."""

_KEY_LIMIT = 100
_RETRY_AFTER = (0.1, 0.5, 2.0)  # a full store makes room for a small object


@dataclass(frozen=True)
class RowShape:
    """A row is [slots, hidden] of ``dtype``."""

    slots: int
    hidden: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        size: int = self.slots * self.hidden * self.dtype.itemsize
        return size


class Form:
    """How the installed hs_connectors stores a sample and tells of it.

    From 0.9 on a manifest with the layout of the packed bytes goes to the client in
    the response; before, the store holds one beside the tensors, and the client gets
    the key alone.

    Raises:
        TapRefused: hs_connectors is missing, too old or unknown.
    """

    def __init__(self) -> None:
        names = ("MooncakeHiddenStatesStore", "MooncakeStoreConfig", "assert_finite")
        self.module = load("mooncake", "mooncake_store", *names)
        store = self.module.MooncakeHiddenStatesStore
        second = [*inspect.signature(store.put_sample).parameters][1:2]
        self.manifests = second == ["transfer_manifest"]
        known = self.manifests and hasattr(self.module, "packed_layout")
        if not known and second != ["key"]:
            raise TapRefused(
                "the installed hs_connectors stores Mooncake samples in a way that is "
                "unknown to specshim; install hs_connectors 0.9.0"
            )

    def manifest(
        self, key: str, row: RowShape, rows: int, ids: int, *, with_output: bool = False
    ) -> dict[str, Any]:
        """The transfer manifest of a sample, as hs_connectors' connector makes it."""
        tensors, size = self.module.packed_layout(
            {
                "hidden_states": ([rows, row.slots, row.hidden], row.dtype),
                "token_ids": ([ids], torch.int64),
            }
        )
        return {
            "handle": key,
            "version": self.module.VERSION,
            "tensors": tensors,
            "metadata": {
                "num_tokens": rows,
                "total_aligned_bytes": size,
                "extract_mode": "all" if with_output else "prompt_only",
            },
        }


class MooncakePlaces:
    """Keys of the store; see :class:`specshim.tap.places.Places`."""

    def __init__(self, row: RowShape) -> None:
        self.form = Form()
        self._row = row

    def choose(self, request_id: str, parameters: Mapping[str, Any]) -> str:
        """A key that no other sample has: Mooncake keeps an older object under it."""
        if parameters.get("hidden_states_path") is not None:
            raise ValueError(
                "the request names a hidden_states_path, but samples go to Mooncake; "
                "leave it out"
            )
        clean = re.sub(r"[^A-Za-z0-9_-]", "_", request_id)[:_KEY_LIMIT]
        return f"k{clean}-{secrets.token_hex(8)}"

    def tell(
        self, handle: str, rows: int | None, ids: int, *, with_output: bool
    ) -> dict[str, Any] | None:
        """The manifest, or the key alone before hs_connectors 0.9."""
        if not self.form.manifests:
            return {"handle": handle}
        if rows is None:
            return None
        return self.form.manifest(handle, self._row, rows, ids, with_output=with_output)

    def refuse(self, reason: str) -> dict[str, Any]:
        """The reason alone: whoever reads the store needs a key of it."""
        return {"hidden_states_error": reason}


class MooncakeSink:
    """Puts whole samples into the store; its object spans a sample, so rows wait.

    Args:
        row: what a row is.
        settings: the store's, as hs_connectors' backend builds them.
        max_bytes: bound of the memory in which rows wait for the rest of their sample.
            hs_connectors adds a staging buffer per writer thread, as large as the
            largest sample.
        writers: number of those threads.

    Raises:
        TapRefused: hs_connectors or Mooncake is not usable here.
    """

    slow = True

    def __init__(
        self,
        row: RowShape,
        settings: Mapping[str, Any],
        max_bytes: int = MAX_BUFFER_BYTES,
        writers: int = WRITERS,
    ) -> None:
        self.form = Form()
        self.row = row
        self.room = Room(max_bytes, writers)
        module = self.form.module
        config = module.MooncakeStoreConfig.from_dict(dict(settings))
        self.store = module.MooncakeHiddenStatesStore(config)
        try:
            self.store.setup()
        except (ImportError, RuntimeError) as error:
            raise TapRefused(
                f"Mooncake cannot be used with the master at "
                f"{config.master_server_address}: {error}"
            ) from error

    def open(
        self,
        handle: str,
        *,
        announced: bool,
        rows: int | None = None,
        temporary: str = "",
    ) -> MooncakeWriter:
        """Begin a sample; nothing is stored yet."""
        return MooncakeWriter(self, handle, rows)


class MooncakeWriter:
    """One sample, put together in host memory; see :class:`SampleWriter`."""

    def __init__(self, sink: MooncakeSink, key: str, rows: int | None) -> None:
        self._sink = sink
        self._key = key
        self._rows = rows or 0
        self._buffer: torch.Tensor | None = None
        self._guard = threading.Lock()
        self._stored = False

    def write(self, start: int, rows: memoryview) -> None:
        """Keep a copy of rows; refuses values that are not finite, as theirs does."""
        row = self._sink.row
        states = torch.frombuffer(rows, dtype=row.dtype)
        states = states.view(-1, row.slots, row.hidden)
        self._sink.form.module.assert_finite("hidden_states", states)
        end = start + len(states)
        with self._sink.room.turn(self._guard):
            self._grow(end)
            assert self._buffer is not None
            self._buffer[start:end] = states

    def _grow(self, rows: int) -> None:
        """Room for ``rows`` rows, or for all where their number is known."""
        before, row, room = self._buffer, self._sink.row, self._sink.room
        have = 0 if before is None else len(before)
        if rows <= have:
            return
        size = max(rows, self._rows, 2 * have)
        room.take(self._key, size * row.bytes)
        try:
            buffer = torch.empty(size, row.slots, row.hidden, dtype=row.dtype)
        except RuntimeError as error:
            room.release(size * row.bytes)
            raise MemoryError(f"no memory for {size} rows") from error
        if before is not None:
            buffer[:have] = before
        self._buffer = buffer
        del before
        room.release(have * row.bytes)

    def ending(self) -> None:
        """Others may wait for the room of this sample from now on."""
        self._sink.room.leaving(self._key)

    def commit(self, rows: int, token_ids: Sequence[int]) -> None:
        """Store the sample; the object becomes visible at once and whole."""
        assert self._buffer is not None
        sink = self._sink
        tensors = {
            "hidden_states": self._buffer[:rows],
            "token_ids": torch.tensor(list(token_ids), dtype=torch.int64),
        }
        try:
            self._stored = True  # some of it may be there even after an error
            sink.store.put_sample(self._address(rows, len(token_ids)), tensors)
        finally:
            del tensors
            self._free()

    def abort(self, reason: str = "") -> None:
        """Give its memory back; nothing is stored."""
        self._free()

    def report(self, reason: str) -> None:
        """Store the reason in the sample's place, so that its client need not wait."""
        address, store = self._address(0, 0), self._sink.store
        for seconds in (*_RETRY_AFTER, None):
            try:
                store.put_error(address, reason)
                return
            except Exception as error:
                if seconds is None:  # its client will wait in vain
                    logger.warning(
                        "Mooncake was not told that %s failed: %s", self._key, error
                    )
                    return
            time.sleep(seconds)

    def discard(self) -> None:
        """Remove the stored sample."""
        if self._stored:
            with suppress(Exception):  # evicted, or the store is gone
                self._sink.store.delete_sample(self._key)

    def _address(self, rows: int, ids: int) -> Any:
        form, row = self._sink.form, self._sink.row
        if not form.manifests:
            return self._key
        return form.manifest(self._key, row, rows, ids)

    def _free(self) -> None:
        with self._guard:
            buffer, self._buffer = self._buffer, None
        if buffer is not None:
            size, buffer = len(buffer) * self._sink.row.bytes, None
            self._sink.room.release(size)
        self._sink.room.left(self._key)
