"""Temporary files of a killed server go; those of a living one stay, however old."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

from specshim._sample_files import HELD, whole_file
from specshim.tap import leftovers
from specshim.tap.leftovers import remove_leftovers
from specshim.tap.sink import FileSink

_SERVER = """
import sys, time
from specshim.tap.sink import FileSink
writer = FileSink(3, 8, "float32", {}).open(sys.argv[1], announced=True)
print("open", flush=True)
time.sleep(60)
"""


def partial_files(folder) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".partial"))


def make_old(folder) -> None:
    before = time.time() - 3600
    for name in partial_files(folder):
        os.utime(folder / name, (before, before), follow_symlinks=False)


def test_what_a_killed_server_left_is_removed_and_what_it_writes_is_not(tmp_path):
    command = [sys.executable, "-c", _SERVER, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "open\n"
        make_old(tmp_path)
        assert remove_leftovers(str(tmp_path)) == 0
        assert len(partial_files(tmp_path)) == 1
        server.send_signal(signal.SIGKILL)
    assert remove_leftovers(str(tmp_path)) == 1
    assert partial_files(tmp_path) == []


def test_a_sample_of_this_process_is_completed_after_the_sweep(tmp_path):
    writer = FileSink(3, 8, "float32", {}).open(str(tmp_path / "a"), announced=True)
    make_old(tmp_path)
    assert remove_leftovers(str(tmp_path)) == 0
    writer.write(0, memoryview(bytes(96)))
    writer.commit(1, [5])
    assert (tmp_path / "a").exists()


def test_a_file_that_the_cache_route_writes_stays_and_a_left_one_goes(tmp_path):
    with whole_file(str(tmp_path / "a")) as temporary:
        open(temporary, "w").close()
        assert remove_leftovers(str(tmp_path)) == 0
        kept = partial_files(tmp_path)
    folder = tmp_path / f".{'0' * 32}.partial"  # as of a killed one
    folder.mkdir()
    for name in (HELD, "sample", ".tmpsafetensors"):
        (folder / name).touch()
    assert len(kept) == 1 and remove_leftovers(str(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_nobody_holds_yet_may_be_of_a_living_writer(tmp_path):
    (tmp_path / f".{'0' * 32}.partial").mkdir()
    assert remove_leftovers(str(tmp_path)) == 0
    make_old(tmp_path)
    assert remove_leftovers(str(tmp_path)) == 1


def test_folders_that_clients_named_are_searched_and_links_are_not(tmp_path):
    deep, elsewhere = tmp_path / "hs" / "a" / "b", tmp_path / "elsewhere"
    for folder in (deep, elsewhere):
        folder.mkdir(parents=True)
        (folder / f".{'0' * 32}.partial").touch()
    (tmp_path / "hs" / "link").symlink_to(elsewhere)
    assert remove_leftovers(str(tmp_path / "hs")) == 1
    assert os.listdir(deep) == [] and len(os.listdir(elsewhere)) == 1


def test_the_work_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "MOST_ENTRIES", 10)
    for number in range(30):
        (tmp_path / f".{number:032x}.partial").touch()
    assert remove_leftovers(str(tmp_path)) == 10


@pytest.mark.parametrize(
    ("name", "beside", "held", "age", "goes"),
    [
        ("a.safetensors.lock", False, False, 60, True),
        ("a.safetensors.lock", False, False, 0, False),  # a client may read it yet
        ("a.safetensors.lock", True, False, 60, False),  # complete, not fetched yet
        ("a.safetensors.lock", False, True, 60, False),
        ("apt.lock", False, False, 60, False),  # somebody else's
    ],
)
def test_locks_that_nobody_needs(tmp_path, name, beside, held, age, goes):
    path = tmp_path / name
    path.touch()
    before = time.time() - age
    os.utime(path, (before, before))
    if beside:
        (tmp_path / name.removesuffix(".lock")).touch()
    with open(path) as lock:
        if held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_leftovers(str(tmp_path)) == goes
    assert path.exists() != goes


@pytest.mark.parametrize(
    "name", ["a.partial", ".a.partial", f".{'0' * 32}.safetensors", "0" * 32]
)
def test_files_of_others_stay(tmp_path, name):
    (tmp_path / name).touch()
    make_old(tmp_path)
    os.utime(tmp_path / name, (0, 0))
    assert remove_leftovers(str(tmp_path)) == 0 and os.listdir(tmp_path) == [name]


def test_links_and_folders_stay(tmp_path):
    (tmp_path / "victim").touch()
    (tmp_path / f".{'0' * 32}.partial").symlink_to(tmp_path / "victim")
    folder = tmp_path / f".{'1' * 32}.partial"
    (folder / "theirs").mkdir(parents=True)
    (tmp_path / "a.safetensors.lock").symlink_to(tmp_path / "victim")
    make_old(tmp_path)
    assert remove_leftovers(str(tmp_path)) == 0
    assert len(os.listdir(tmp_path)) == 4 and (folder / "theirs").exists()


def test_without_flock_nobody_knows_and_nothing_is_removed(tmp_path, monkeypatch):
    (tmp_path / f".{'0' * 32}.partial").touch()
    make_old(tmp_path)

    def unsupported(*args):
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", unsupported)
        assert remove_leftovers(str(tmp_path)) == 0
    assert remove_leftovers(str(tmp_path)) == 1


def test_a_folder_that_is_not_there_is_no_error(tmp_path):
    assert remove_leftovers(str(tmp_path / "none")) == 0


def test_a_folder_swapped_for_a_link_during_the_sweep(tmp_path, monkeypatch):
    """As somebody could do who may write to the storage path."""
    elsewhere, hs = tmp_path / "elsewhere", tmp_path / "hs"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    planted = hs / f".{'0' * 32}.partial"
    planted.mkdir(parents=True)
    os.utime(planted, (0, 0))
    real = os.open

    def swapping(path, flags, *args, **options):
        if str(path).endswith(leftovers.HELD):
            planted.rename(hs / "moved")
            planted.symlink_to(elsewhere)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", swapping)
    leftovers.remove_leftovers(str(hs))
    assert os.listdir(elsewhere) == ["precious"]
