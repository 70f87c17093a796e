"""The reader's half of the lock protocol: ``<file>.lock`` is held while vLLM writes.

An exclusive lock needs a descriptor that can write: NFS turns flock into a lock on
bytes, and refuses it on one opened for reading. Elsewhere reading will do, which is all
that is allowed where the server runs as another user.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress

PATIENCE = 120.0
"""Seconds that a reader waits for a lock that is held, as long as speculators 0.6 to
0.9 waits for an answer. Somebody holds it, so the file is on its way."""


def wait(path: str, timeout: float = PATIENCE, interval: float = 0.1) -> None:
    """Wait until the lock file ``path`` is free, then remove it.

    Raises:
        FileNotFoundError: there is no lock file.
        TimeoutError: it was still held after ``timeout`` seconds.
    """
    for _ in _attempts(path, timeout):
        time.sleep(interval)


async def wait_async(
    path: str, timeout: float = PATIENCE, interval: float = 0.1
) -> None:
    """:func:`wait` for a coroutine."""
    with closing(_attempts(path, timeout)) as attempts:
        for _ in attempts:
            await asyncio.sleep(interval)


def held(path: str) -> bool:
    """Whether a lock file ``path`` is there and held by somebody; False in doubt."""
    try:
        with _opened(path) as descriptor:
            return not _take(descriptor)
    except OSError:
        return False


@contextmanager
def reason(path: str) -> Iterator[Callable[[], str]]:
    """What a lock file ``path`` says, to be asked once it is free; "" if nothing.

    A server with specshim leaves there why there is no file. Whoever waits for the lock
    removes it, so it is opened before.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        yield lambda: ""
        return
    try:
        yield lambda: os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip()
    finally:
        os.close(descriptor)


def missing(path: str, said: str) -> FileNotFoundError:
    """The error for a file that the server could not make; it ``said`` why, or not."""
    why = said or "the server made no file, and says why in its log"
    return FileNotFoundError(errno.ENOENT, f"No hidden states: {why}", path)


def _attempts(path: str, timeout: float) -> Generator[None, None, None]:
    deadline = time.monotonic() + timeout
    with _opened(path) as descriptor:
        while not _take(descriptor):
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{path} is still held after {timeout:g} s: the server has not "
                    "finished the file"
                )
            yield
    with suppress(FileNotFoundError, PermissionError):
        os.remove(path)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
