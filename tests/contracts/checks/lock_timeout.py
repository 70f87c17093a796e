"""A lock that the server holds for more than ten seconds is waited for."""

import asyncio
import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path

from speculators.data_generation import vllm_client


def main() -> None:
    lock = Path(tempfile.mkdtemp(), "one.safetensors.lock")
    for wait in (vllm_client.wait_for_lock, _wait_async):
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        threading.Timer(11, os.close, (descriptor,)).start()
        start = time.monotonic()
        wait(str(lock))
        assert time.monotonic() - start > 10
        assert not lock.exists()


def _wait_async(path: str) -> None:
    asyncio.run(vllm_client.wait_for_lock_async(path))


if __name__ == "__main__":
    main()
