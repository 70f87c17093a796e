"""Which modes are served at once, which prompts they get, and in which order."""

from __future__ import annotations

import pytest

from benchmarks.cells import (
    MIXED,
    SHAPES,
    Cell,
    fits_too,
    gpu_share,
    in_turn,
    known_for,
    known_prompts,
    lengths,
    prompts_of,
    waves,
)

LLAMA, QWEN = SHAPES["llama-8b"], SHAPES["qwen3.6-27b"]
H200_GIB = 139.8


def test_a_token_of_the_shapes_of_the_goal():
    assert LLAMA.token_bytes == 4 * 4096 * 2
    assert QWEN.token_bytes == 6 * 5120 * 2


def test_modes_that_fit_a_gpu_are_served_at_once():
    assert waves(LLAMA, ["plain", "tap", "stock"], H200_GIB) == [
        ["plain", "tap", "stock"]
    ]
    assert waves(QWEN, ["plain", "tap", "stock"], H200_GIB) == [
        ["stock"],
        ["plain", "tap"],
    ]
    assert gpu_share(2) * H200_GIB > QWEN.weights_gib * 1.1


def test_every_mode_comes_first_as_often():
    rounds = [in_turn(["plain", "tap", "stock"], repeat) for repeat in range(3)]
    assert [order[0] for order in rounds] == ["plain", "tap", "stock"]
    assert all(sorted(order) == ["plain", "stock", "tap"] for order in rounds)


@pytest.mark.parametrize("what", ["256", MIXED])
def test_prompts_are_the_same_for_every_mode_and_others_in_every_round(what):
    cell = Cell(LLAMA, "http", what)
    counts = lengths(cell, 8192, 20_480, 64)
    assert len(counts) >= 64 and sum(counts) >= 20_480
    assert all(64 <= count <= 8192 for count in counts)
    known = known_for(cell, known_prompts(LLAMA, ["256", "1024", MIXED]))
    first, again = (prompts_of(cell, 0, counts, known) for _ in range(2))
    assert first == again != prompts_of(cell, 1, counts, known)
    assert known and all(first.count(prompt) == 1 for prompt in known)


def test_the_reference_is_made_beside_the_servers_only_where_it_fits():
    assert fits_too(SHAPES["llama-8b"], 3, 139.8)  # 4 x (16 + 12 + 3) GiB of an H200
    assert not fits_too(SHAPES["llama-8b"], 3, 80)
    assert not fits_too(SHAPES["qwen3.6-27b"], 2, 139.8)
