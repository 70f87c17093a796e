"""Whose the storage path is: a folder planted in /tmp is refused, an open one named."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from specshim import _storage
from specshim._storage import make_folders, storage_problem, storage_warning


@pytest.fixture
def shared(tmp_path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def foreign(monkeypatch):
    """Makes a file another user's, or us another user where that is not allowed."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 4242, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 4242)

    return give


@pytest.mark.parametrize("create", [True, False])
def test_a_folder_that_another_user_planted(shared, foreign, create):
    (shared / "hs").mkdir()
    foreign(shared / "hs")
    for path in (shared / "hs", shared / "hs" / "x"):
        problem = storage_problem(str(path), create=create)
        assert "another user (uid " in problem and problem.count(". ") == 0
        assert not (shared / "hs" / "x").exists()


def test_a_link_that_another_user_planted(shared, foreign, tmp_path):
    ours = tmp_path / "ours"
    ours.mkdir()
    (shared / "hs").symlink_to(ours)
    assert storage_problem(str(shared / "hs"), create=True) is None
    foreign(shared / "hs")
    problem = storage_problem(str(shared / "hs" / "x"), create=True)
    assert "which another user" in problem
    assert os.listdir(ours) == []


def test_our_own_link_to_what_another_user_planted(shared, foreign, tmp_path):
    (shared / "theirs").mkdir()
    foreign(shared / "theirs")
    (tmp_path / "link").symlink_to("tmp/../tmp/theirs")
    assert "tmp/theirs" in storage_problem(str(tmp_path / "link"), create=True)


def test_a_folder_that_an_administrator_gave_to_another_user(tmp_path, foreign):
    (tmp_path / "team").mkdir()
    foreign(tmp_path / "team")
    assert storage_problem(str(tmp_path / "team"), create=True) is None


def test_a_link_to_itself_is_a_sentence(tmp_path):
    (tmp_path / "a").symlink_to("a")
    assert "cannot be written to" in storage_problem(str(tmp_path / "a"), create=True)


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "a/" * 3000, "\udcff"])
@pytest.mark.parametrize("create", [True, False])
def test_odd_paths_are_sentences(tmp_path, name, create):
    problem = storage_problem(f"{tmp_path}/{name}", create=create)
    assert problem is not None and problem.endswith(".")


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o775])
def test_a_folder_where_everybody_may_replace_files_is_named(tmp_path, mode):
    folder = tmp_path / "hs"
    folder.mkdir()
    folder.chmod(mode)
    warning = storage_warning(str(folder / "x"))
    assert (warning is not None) == (mode == 0o777)
    if warning:
        assert f"in {folder}, " in warning and "chmod +t" in warning


def test_folders_are_never_writable_for_everybody(tmp_path):
    before = os.umask(0)
    try:
        make_folders(str(tmp_path / "a" / "b"))
        make_folders(str(tmp_path / "a" / "b"))
    finally:
        os.umask(before)
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o775


def test_what_a_killed_server_left_is_no_reason_to_refuse_a_full_disk(
    tmp_path, monkeypatch
):
    left = tmp_path / f".{0:032x}.partial"
    with left.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 256 << 20)
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setattr(_storage, "LEAST_FREE_BYTES", free + (128 << 20))
    assert "MiB free, less than" in storage_problem(str(tmp_path), create=False)
    assert left.exists()
    assert storage_problem(str(tmp_path), create=True) is None
    assert not left.exists()
