"""Runs in an environment with hs_connectors and Mooncake: the sink and a real store.

Standard input: {"master": "host:port"}. What the sink stores, hs_connectors' reader
reads; what failed is told; what nobody wants is removed; memory is bounded.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from hs_connectors.mooncake_store import MooncakeHiddenStatesStore, MooncakeStoreConfig

from specshim.tap.mooncake import MooncakePlaces, MooncakeSink, RowShape

ROW = RowShape(3, 8, torch.bfloat16)
MIB = 1 << 20


def main() -> None:
    settings = {
        "local_hostname": "127.0.0.1",
        "master_server_address": json.load(sys.stdin)["master"],
        "global_segment_size": 32 * MIB,
        "local_buffer_size": 32 * MIB,
    }
    sink = MooncakeSink(ROW, settings, max_bytes=MIB)
    reader = MooncakeHiddenStatesStore(MooncakeStoreConfig.from_dict(settings)).setup()
    places = MooncakePlaces(ROW)

    def told(handle: str, rows: int) -> Any:
        answer = places.tell(handle, rows, rows, with_output=False)
        return answer if places.form.manifests else answer["handle"]

    def read(handle: str, rows: int, seconds: float = 60) -> Any:
        return reader.get_sample(told(handle, rows), timeout=seconds)

    def failure(handle: str, rows: int, seconds: float = 60) -> str:
        try:
            read(handle, rows, seconds)
        except (RuntimeError, TimeoutError) as error:
            return str(error)
        raise AssertionError(f"{handle} was read")

    def begin(request: str, size: int | None) -> tuple[str, Any]:
        handle = places.choose(request, {})
        return handle, sink.open(handle, announced=True, rows=size)

    def write(writer: Any, states: torch.Tensor, start: int = 0) -> None:
        piece = states.contiguous().view(torch.uint8).reshape(-1).numpy()
        writer.write(start, memoryview(piece))

    def refused(kind: type[Exception], writer: Any, states: torch.Tensor) -> str:
        try:
            write(writer, states)
        except kind as error:
            return str(error)
        raise AssertionError("the rows were taken")

    # Pieces of a sample, its size known or not; one row too many is cut off.
    states = torch.randn(11, 3, 8).to(torch.bfloat16)
    for size in (10, None):
        handle, writer = begin("a", size)
        write(writer, states[3:size], 3)
        write(writer, states[:3])
        writer.commit(10, range(10))
        loaded = read(handle, 10)
        assert torch.equal(loaded["hidden_states"], states[:10])
        assert loaded["token_ids"].tolist() == list(range(10))
        writer.discard()
        assert "Timed out" in failure(handle, 10, seconds=0.3)
    # A client that waits is told what went wrong; of an aborted request nobody is.
    handle, writer = begin("b", 11)
    write(writer, states)
    writer.abort()
    writer.report("the disk of nobody is full")
    assert "the disk of nobody is full" in failure(handle, 11)
    handle, writer = begin("c", 11)
    write(writer, states)
    writer.abort()
    assert "Timed out" in failure(handle, 11, seconds=0.3)
    # Rows that are not finite never leave, as from hs_connectors' own connector.
    bad = states.clone()
    bad[9, 1, 2] = float("nan")
    _, writer = begin("d", 11)
    assert "Non-finite" in refused(RuntimeError, writer, bad)
    writer.abort()
    # The bound on samples under way; what was given up makes room again.
    large = torch.zeros(MIB // ROW.bytes, 3, 8, dtype=torch.bfloat16)
    (_, first), (_, second) = begin("e", len(large)), begin("f", 11)
    write(first, large)
    assert "raise max_buffer_bytes" in refused(MemoryError, second, states)
    first.abort()
    write(second, states)
    second.abort()
    # What does not fit into the store is told by the exception that fails the sample.
    # (A full store evicts at will, so nothing is read from here on.)
    sink.room.max_bytes = 64 * MIB
    huge = torch.zeros(40 * MIB // ROW.bytes, 3, 8, dtype=torch.bfloat16)
    _, writer = begin("g", len(huge))
    write(writer, huge)
    try:
        writer.commit(len(huge), range(len(huge)))
    except RuntimeError as error:
        writer.abort()
        writer.report(f"it could not be completed: {error}")
    else:
        raise AssertionError("40 MiB went into 32")
    assert sink.room.bytes == 0
    print("done")


if __name__ == "__main__":
    main()
