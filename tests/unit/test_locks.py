"""The reader's half of the lock protocol."""

from __future__ import annotations

import asyncio
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
