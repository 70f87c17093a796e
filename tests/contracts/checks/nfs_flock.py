"""Waiting for a lock works where flock wants a descriptor that can write.

No NFS here: its client turns an exclusive flock into a write lock on the bytes of the
file, and fails with EBADF on a descriptor opened for reading, which this does too.
"""

import asyncio
import errno
import fcntl
import importlib
import importlib.util
import os
import tempfile
from pathlib import Path

_flock = fcntl.flock


def flock_of_nfs(descriptor: int, operation: int) -> None:
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    if operation & fcntl.LOCK_EX and mode == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _flock(descriptor, operation)


def main() -> None:
    fcntl.flock = flock_of_nfs
    client = importlib.import_module("speculators.data_generation.vllm_client")
    waits = [client.wait_for_lock, lambda p: asyncio.run(client.wait_for_lock_async(p))]
    if importlib.util.find_spec("speculators._vendor"):
        vendored = "speculators._vendor.hs_connectors.transfer"
        waits.append(importlib.import_module(vendored).wait_for_lock)
    for wait in waits:
        lock = Path(tempfile.mkdtemp(), "one.safetensors.lock")
        lock.touch()
        wait(str(lock))
        assert not lock.exists()


if __name__ == "__main__":
    try:
        main()
    finally:
        fcntl.flock = _flock  # other checks may follow in this process
