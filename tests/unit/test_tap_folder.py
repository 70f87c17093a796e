"""What somebody else plants below the storage path is never followed or waited for."""

from __future__ import annotations

import os
import shutil
import stat

import pytest

pytest.importorskip("torch")
from safetensors.torch import load_file

from specshim.tap.folder import Storage
from specshim.tap.sink import FileSink


def sink(storage) -> FileSink:
    return FileSink(1, 8, "float32", {}, storage=str(storage))


def complete(writer, value: float) -> None:
    import torch

    rows = torch.full((1, 1, 8), float(value)).view(torch.uint8).reshape(-1).numpy()
    writer.write(0, memoryview(rows))
    writer.commit(1, [1])


@pytest.fixture
def victim(tmp_path):
    """Somebody's file outside the storage path, which must stay as it is."""
    path = tmp_path / "victim"
    path.write_text("precious")
    os.utime(path, (1, 1))
    yield path
    assert path.read_text() == "precious" and path.stat().st_mtime == 1


@pytest.fixture
def hs(tmp_path):
    folder = tmp_path / "hs"
    folder.mkdir()
    return folder


def test_a_link_in_place_of_the_file_is_replaced(hs, victim):
    (hs / "a").symlink_to(victim)
    writer = sink(hs).open(str(hs / "a"), announced=True)
    (hs / "a").symlink_to(victim)  # once more, while the rows are written
    complete(writer, 1)
    assert not (hs / "a").is_symlink()
    assert load_file(hs / "a")["hidden_states"].mean() == 1


def test_a_hard_link_in_place_of_the_file_is_replaced(hs, victim):
    (hs / "a").hardlink_to(victim)
    complete(sink(hs).open(str(hs / "a"), announced=True), 1)
    assert load_file(hs / "a")["token_ids"].tolist() == [1]


def test_a_hard_link_in_place_of_the_lock_is_not_written_to(hs, victim):
    (hs / "a.lock").hardlink_to(victim)
    with pytest.raises(OSError, match="two names"):
        sink(hs).open(str(hs / "a"), announced=True)


def test_a_link_planted_over_the_lock_later_is_not_written_to(hs, victim):
    writer = sink(hs).open(str(hs / "a"), announced=True)
    (hs / "a.lock").unlink()
    (hs / "a.lock").symlink_to(victim)
    writer.abort()
    writer.report("the reason")
    writer.discard()
    assert os.listdir(hs) == ["a.lock"]


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_a_lock_that_is_no_file_fails_the_sample_at_once(hs, victim, kind):
    lock = hs / "a.lock"
    if kind == "fifo":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(victim if kind == "link" else hs / "nowhere")
    with pytest.raises(OSError):
        sink(hs).open(str(hs / "a"), announced=True)
    assert os.listdir(hs) == ["a.lock"]


def test_a_folder_in_place_of_the_file_fails_the_sample(hs):
    (hs / "a").mkdir()
    with pytest.raises(OSError):
        sink(hs).open(str(hs / "a"), announced=True)
    assert os.listdir(hs) == ["a"]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_folder_swapped_for_a_link_before_it_is_opened(hs, tmp_path, depth):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "y").mkdir(parents=True)
    parts = ["x", "y"][:depth]
    (hs / "x").symlink_to(elsewhere)  # the scheduler saw a folder here
    with pytest.raises(OSError, match="a link or a file stands where a folder should"):
        sink(hs).open(str(hs.joinpath(*parts, "a")), announced=True)
    assert [p.name for p in elsewhere.rglob("*")] == ["y"]


def test_a_folder_swapped_for_a_link_while_rows_are_written(hs, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    writer = sink(hs).open(str(hs / "x" / "a"), announced=True)
    (hs / "x").rename(hs / "moved")
    (hs / "x").symlink_to(elsewhere)
    complete(writer, 1)
    assert sorted(os.listdir(hs / "moved")) == ["a", "a.lock"]
    assert os.listdir(elsewhere) == []
    writer.discard()
    assert os.listdir(elsewhere) == []


def test_the_storage_path_itself_swapped_for_a_link(hs, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    opened = sink(hs)
    hs.rmdir()
    hs.symlink_to(elsewhere)
    with pytest.raises(OSError, match="a link or a file"):
        opened.open(str(hs / "a"), announced=True)
    assert os.listdir(elsewhere) == []


def test_the_storage_path_may_be_reached_through_a_link_from_the_start(hs, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(hs)
    for root in (link, hs):  # as given, and as custom paths are told
        complete(sink(link).open(str(root / "a"), announced=True), 1)
        assert load_file(hs / "a")["token_ids"].tolist() == [1]


def test_a_storage_path_that_was_removed_is_made_again(hs):
    opened = sink(hs)
    shutil.rmtree(hs)
    complete(opened.open(str(hs / "x" / "a"), announced=True), 1)
    assert load_file(hs / "x" / "a")["token_ids"].tolist() == [1]


def test_a_storage_path_that_another_user_put_there_meanwhile(hs, monkeypatch):
    storage = Storage(str(hs))
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result([0o40755, *[4242] * 9]))
    with pytest.raises(OSError, match="belongs to another user by now"):
        storage.open(str(hs / "a"))


@pytest.mark.parametrize("path", ["/etc/a", "/hs/../a", "/hs/x/../../a", "/hsx/a"])
def test_nothing_outside_is_opened(path):
    with pytest.raises(OSError, match="does not lie below"):
        Storage("/hs").open(path)


def test_no_descriptor_stays_open(hs):
    before = os.listdir("/proc/self/fd")
    opened = sink(hs)
    for index in range(3):
        complete(opened.open(str(hs / "x" / str(index)), announced=True), index)
    aborted = opened.open(str(hs / "b"), announced=True)
    aborted.abort()
    aborted.discard()
    (hs / "c").mkdir()
    with pytest.raises(OSError):
        opened.open(str(hs / "c"), announced=True)
    with pytest.raises(OSError):
        opened.open(str(hs / "x" / "0" / "d"), announced=True)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("umask", "folder", "file"), [(0, 0o775, 0o644), (0o077, 0o700, 0o600)]
)
def test_the_umask_counts_and_nothing_is_writable_for_all(hs, umask, folder, file):
    before = os.umask(umask)
    try:
        complete(sink(hs).open(str(hs / "x" / "a"), announced=True), 1)
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in hs.rglob("*")}
    assert modes == {"x": folder, "a": file, "a.lock": file}
