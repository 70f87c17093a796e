"""Host memory of rows: bounded, shared by small steps, used again, never twice."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from specshim.tap.host_memory import HostMemory
from specshim.tap.outlet import waits_for_memory

ROW = torch.zeros(1, 2, 8)  # 64 bytes


def taken_within(memory: HostMemory, count: int, seconds: float) -> list:
    found: list = []
    thread = threading.Thread(
        target=lambda: found.append(memory.take(count)), daemon=True
    )
    thread.start()
    thread.join(seconds)
    return found


def test_a_step_of_many_rows_gets_them_part_by_part_and_then_waits():
    memory = HostMemory(ROW, 64 * 64, pinned=False)
    parts = [memory.take(100) for _ in range(4)]
    assert [len(part.rows) for part in parts] == [16, 16, 16, 16]
    assert memory.bytes == memory.used_bytes == 64 * 64
    assert not taken_within(memory, 1, 0.2)
    memory.give_back(parts[2])  # and the waiting thread goes on


def test_steps_of_few_rows_share_a_block_and_overlap_nowhere():
    memory = HostMemory(ROW, 64 * 64, pinned=False)
    parts = [memory.take(3) for _ in range(4)]
    for number, part in enumerate(parts):
        part.rows.fill_(number)
    assert all((part.rows == number).all() for number, part in enumerate(parts))
    assert memory.bytes == memory.block_bytes == 16 * 64
    for part in parts:
        memory.give_back(part)
    assert memory.used_bytes == 0
    assert len(memory.take(100).rows) == 16  # the block begins anew


def test_a_block_is_used_again_only_when_all_its_users_are_done():
    memory = HostMemory(ROW, 64, pinned=False)  # one block of one row
    first = memory.take(1)
    waiting = threading.Thread(target=memory.take, args=(1,), daemon=True)
    waiting.start(), waiting.join(0.2)
    assert waiting.is_alive()
    memory.give_back(first)
    waiting.join(5)
    assert not waiting.is_alive() and memory.bytes == 64


def test_a_bound_below_one_row_holds_one_row():
    memory = HostMemory(torch.zeros(1, 4, 1000), 1, pinned=False)
    assert len(memory.take(10).rows) == 1 and memory.bytes == 16_000


@pytest.mark.parametrize("width", [8, 100, 4096, 5 * 1024 * 6, 9_000_000])
def test_what_torch_pins_stays_within_the_bound(width, monkeypatch):
    """torch rounds each allocation of pinned memory up to a power of two."""
    pinned, empty = [], torch.empty

    def rounded(shape, *, dtype, pin_memory):
        assert pin_memory
        size = empty(shape, dtype=dtype, device="meta").nbytes
        pinned.append(1 << (size - 1).bit_length())
        return empty(shape, dtype=dtype, device="meta")

    monkeypatch.setattr(torch, "empty", rounded)
    like = empty((1, 1, width), dtype=torch.bfloat16, device="meta")
    memory = HostMemory(like, 1 << 30, pinned=True)
    while memory.bytes + memory.block_bytes <= 1 << 30:
        assert memory.take(1 << 24).rows.nbytes > memory.block_bytes // 2
    assert sum(pinned) == memory.bytes > 0.9 * (1 << 30)
    assert not taken_within(memory, 1, 0.1)


def test_where_the_host_has_no_more_memory_the_blocks_there_are_must_do(monkeypatch):
    memory = HostMemory(ROW, 64 * 64, pinned=False)
    first = memory.take(16)

    def full(*args, **options):
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch, "empty", full)
    assert not taken_within(memory, 1, 0.2)
    memory.give_back(first)
    with pytest.raises(RuntimeError, match="no memory"):
        HostMemory(ROW, 64 * 64, pinned=False).take(1)


def test_what_is_allocated_before_it_is_needed_stays_within_the_bound():
    memory = HostMemory(ROW, 64 * 64, pinned=False)
    memory.allocate(17)
    assert memory.bytes == 2 * memory.block_bytes and memory.used_bytes == 0
    memory.allocate(1000)
    assert memory.bytes == 64 * 64
    assert len(memory.take(1000).rows) == 16


def test_it_is_said_where_two_steps_do_not_fit():
    step = 8448 * 6 * 5120 * 2  # bytes: a step of a model of 27B
    assert waits_for_memory(step, 2 << 30) is None
    said = waits_for_memory(4 * step, 2 << 30)
    assert said is not None and f" {12 * step} " in said and "1.9 GiB" in said
