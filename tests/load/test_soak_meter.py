"""The soak's own measure: what grows is seen, what only sways is not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from soak_meter import Reading, processes, read, slope, trends

WORKER = "7:VLLM::Worker"


def readings(rss, descriptors, *, count: int = 120) -> list[Reading]:
    return [
        Reading(
            seconds=15.0 * i,
            samples=i,
            rss_mib={WORKER: rss(i)},
            descriptors={WORKER: descriptors(i)},
        )
        for i in range(count)
    ]


def growing(found: list[Reading]) -> set[str]:
    return {trend.name for trend in trends(found) if not trend.flat}


def test_what_sways_is_flat():
    source = random.Random(0)
    found = readings(
        lambda i: 2000 + source.uniform(-30, 30) + 400 * (i < 20),
        lambda i: 100 + source.randrange(-20, 20),
    )
    assert growing(found) == set()


@pytest.mark.parametrize("kib", [2, 10])
def test_a_leak_of_some_kib_per_sample_is_seen(kib):
    per_reading = kib * 15 * 60 / 1024  # at 60 samples per second
    found = readings(lambda i: 2000 + per_reading * i, lambda i: 100)
    assert growing(found) == {f"rss_mib {WORKER}"}


def test_a_descriptor_now_and_then_is_seen():
    found = readings(lambda i: 2000.0, lambda i: 100 + i // 4)
    assert growing(found) == {f"descriptors {WORKER}"}


def test_files_that_pile_up_are_seen():
    found = readings(lambda i: 2000.0, lambda i: 100)
    for i, reading in enumerate(found):
        reading.lock_files, reading.partial_files, reading.disk_mib = i, i, float(i)
    assert growing(found) == {"lock_files", "partial_files", "disk_mib"}


def test_slope():
    assert slope([0, 1, 2], [5, 7, 9]) == pytest.approx(2)
    assert slope([1, 1], [5, 7]) == 0


def test_one_look(tmp_path: Path):
    for name in (".x.partial", "a.lock", "a"):
        (tmp_path / name).write_bytes(b"x" * 2**20)
    code = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        assert processes(child.pid) == [child.pid]
        reading = read(child.pid, tmp_path)
        child.communicate(b"")
    assert (reading.files, reading.lock_files, reading.partial_files) == (3, 1, 1)
    assert reading.disk_mib == 3
    (rss,), (descriptors,) = reading.rss_mib.values(), reading.descriptors.values()
    assert rss > 1 and descriptors >= 3
    assert os.getpid() not in processes(child.pid)
