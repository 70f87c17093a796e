"""The reader's half of the lock protocol."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from specshim import _locks


def taken(path: Path) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.parametrize(
    "wait",
    [_locks.wait, lambda *a, **k: asyncio.run(_locks.wait_async(*a, **k))],
    ids=["wait", "wait_async"],
)
def test_waiting(tmp_path: Path, wait) -> None:
    path = tmp_path / "one.lock"
    with pytest.raises(FileNotFoundError):
        wait(str(path))
    path.touch()
    wait(str(path))
    assert not path.exists()
    descriptor = taken(path)
    assert _locks.held(str(path))
    with pytest.raises(TimeoutError, match=r"one\.lock is still held after 0\.02 s"):
        wait(str(path), timeout=0.02, interval=0.01)
    assert path.exists()
    threading.Timer(0.1, os.close, (descriptor,)).start()
    wait(str(path), timeout=30, interval=0.01)
    assert not path.exists()
    assert not _locks.held(str(path))
    assert not os.listdir(tmp_path)


def test_a_lock_of_another_user(tmp_path: Path, monkeypatch) -> None:
    """Its file (0644) can be read, not written, but by root, who may run this."""
    path = tmp_path / "one.lock"
    descriptor = taken(path)
    open_, modes = os.open, []

    def refuse(name, flags, *rest, **more):
        modes.append(flags & os.O_ACCMODE)
        if modes[-1] != os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return open_(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert _locks.held(str(path))
    os.close(descriptor)
    assert not _locks.held(str(path))
    _locks.wait(str(path))
    assert not path.exists()
    assert set(modes) == {os.O_RDWR, os.O_RDONLY}


@pytest.mark.parametrize("code", [errno.EACCES, errno.EBADF, errno.ESTALE])
def test_held_never_raises(tmp_path: Path, monkeypatch, code: int) -> None:
    def fail(*arguments):
        raise OSError(code, os.strerror(code))

    path = tmp_path / "one.lock"
    path.touch()
    monkeypatch.setattr(fcntl, "flock", fail)
    assert not _locks.held(str(path))
    monkeypatch.setattr(os, "open", fail)
    assert not _locks.held(str(path))
