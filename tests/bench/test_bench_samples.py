"""A damaged, missing or foreign file is found, and nothing is left behind."""

from __future__ import annotations

import os
import struct

import pytest

pytest.importorskip("numpy")
from bench_values import HIDDEN, LAYERS, write_sample

from benchmarks.samples import Sweep, check, digest, is_complete, problems

SHAPE = (LAYERS, HIDDEN)
ONE, ZERO, NAN = b"\x80\x3f", b"\x00\x80", b"\xc0\x7f"  # bfloat16; the zero is -0.0
ROW = HIDDEN * LAYERS


def taken(folder, **options):
    sweep = Sweep(folder, SHAPE, options.get("keep", ()), folder / "aside")
    left = sweep.finish(options["paths"], timeout=options.get("timeout", 0))
    return sweep, left


def test_whole_files_are_taken_with_their_locks(tmp_path):
    paths = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    prompts = [[1, 2, 3], [4, 5]]
    for path, prompt in zip(paths, prompts, strict=True):
        write_sample(path, prompt)
    sweep, left = taken(tmp_path, paths=paths, keep={digest([4, 5])})
    assert left == [] and problems(paths, prompts, sweep.found) == []
    assert sorted(os.listdir(tmp_path)) == ["aside"]
    assert list(sweep.kept) == [paths[1]]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (ONE * ROW * 2 + ONE * HIDDEN + ZERO * HIDDEN, "row 2 is zero in layer 1"),
        (ONE * ROW + NAN + ONE * (2 * ROW - 1), "row 1 is not finite in layer 0"),
    ],
)
def test_rows_that_were_not_computed(tmp_path, rows, problem):
    path = tmp_path / "a.safetensors"
    write_sample(path, [1, 2, 3], rows)
    assert problem in check(str(path), SHAPE).problem


def test_another_prompts_file_and_another_shape(tmp_path):
    path = str(tmp_path / "a.safetensors")
    write_sample(path, [1, 2, 3])
    found = {path: check(path, SHAPE)}
    assert problems([path], [[1, 2, 3]], found) == []
    assert "another prompt" in problems([path], [[1, 2, 4]], found)[0]
    assert "3 rows for 2 tokens" in problems([path], [[1, 2]], found)[0]
    assert "not [4, 8]" in check(path, (4, HIDDEN)).problem


def test_what_is_cut_off_is_not_complete_and_is_missed(tmp_path):
    path = str(tmp_path / "a.safetensors")
    write_sample(path, [1, 2, 3])
    assert is_complete(path)
    with open(path, "r+b") as file:
        (header,) = struct.unpack("<Q", file.read(8))
        file.truncate(8 + header + 2 * ROW)
    assert not is_complete(path)
    sweep, left = taken(tmp_path, paths=[path])
    assert left == [path]
    assert "did not come" in problems([path], [[1, 2, 3]], sweep.found)[0]


def test_a_prompt_without_a_file(tmp_path):
    path = str(tmp_path / "a.safetensors")
    write_sample(path, [1, 2])
    found = {path: check(path, SHAPE)}
    said = problems(["", path], [[7, 8, 9], [1, 2]], found)
    assert said == ["no file was named for a prompt of 3 tokens"]


def test_two_prompts_with_one_file(tmp_path):
    path = str(tmp_path / "a.safetensors")
    write_sample(path, [1, 2])
    found = {path: check(path, SHAPE)}
    said = problems([path, path], [[1, 2], [1, 2]], found)
    assert said == ["1 files were named for 2 prompts"]
