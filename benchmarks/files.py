"""How fast the sink writes files, beside a plain writer of the same blocks."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.results import file_system
from specshim.tap.sink import FileSink
from specshim.tap.worker import WorkerSettings

GOAL = 0.8  # of the plain writer
_SLOTS, _HIDDEN = 4, 4096
_ROW = _SLOTS * _HIDDEN * 2
_ROWS = {"256": 256, "1024": 1024}  # a file's, and a block's
_BYTES = 4 << 30


def measure(bench: Any) -> None:
    """Sink and plain writer in turn, in a storage in memory and on a disk if named."""
    folders = [bench.args.storage / "files"]
    if bench.args.disk:
        folders.append(bench.args.disk / "specshim-bench-files")
    size = _BYTES if bench.args.device == "cuda" else _BYTES // 8
    for folder in folders:
        for rows in _ROWS.values():
            for repeat in range(bench.args.repeats):
                for how in ("plain", "sink")[:: 1 if repeat % 2 else -1]:
                    _measure(bench, folder, rows, repeat, how, size)


def _measure(
    bench: Any, folder: Path, rows: int, repeat: int, how: str, size: int
) -> None:
    threads = WorkerSettings.threads
    entry = {
        "run": bench.run["id"],
        "device": bench.args.device,
        "storage": file_system(folder.parent),
        "threads": threads,
        "block_bytes": rows * _ROW,
        "repeat": repeat,
        "how": how,
    }
    if bench.results.has("files", entry):
        return
    bench.limit.need(30.0, "writing files")
    bench.note_run()
    cpu = time.process_time()
    seconds, written = write(folder, how, rows, threads, size)
    entry["cpu_seconds"] = round(time.process_time() - cpu, 3)
    entry["bytes"] = written
    entry["bytes_per_second"] = round(written / seconds)
    bench.results.add("files", entry)
    bench.say(
        f"{how} writes {entry['bytes_per_second'] / 1e9:.2f} GB/s on "
        f"{entry['storage']} in blocks of {rows * _ROW >> 20} MiB"
    )


def write(
    folder: Path, how: str, rows: int, threads: int, size: int
) -> tuple[float, int]:
    """Seconds and bytes of ``size`` bytes in files of one block each.

    Both end with everything written as far as a reader of the files can tell; neither
    calls fsync.
    """
    folder.mkdir(parents=True, exist_ok=True)
    block = memoryview(os.urandom(1 << 20) * -(-rows * _ROW >> 20))[: rows * _ROW]
    count = max(threads, size // len(block))
    one = {"plain": _plain, "sink": _by_sink(rows)}[how]
    try:
        start = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            for done in [
                pool.submit(one, str(folder / f"{i}.safetensors"), block)
                for i in range(count)
            ]:
                done.result()
        return time.perf_counter() - start, count * len(block)
    finally:
        shutil.rmtree(folder)


def _plain(path: str, block: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(block):
            done += os.write(descriptor, block[done:])
    finally:
        os.close(descriptor)


def _by_sink(rows: int) -> Callable[[str, memoryview], None]:
    sink = FileSink(_SLOTS, _HIDDEN, "bfloat16", {"model": "benchmark"})
    ids = tuple(range(rows))

    def write_sample(path: str, block: memoryview) -> None:
        writer = sink.open(path, announced=True, rows=rows)
        writer.write(0, block)
        writer.commit(rows, ids)

    return write_sample
