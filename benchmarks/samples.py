"""The files of a measurement: waiting for whole ones, checking every row, removal.

Needs numpy and the standard library alone. Rows are looked at as whole numbers, so
that bfloat16 can be read as it lies: a value is zero where all bits but the sign are,
and not finite where all bits of the exponent are set.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specshim import _locks

SUFFIX = ".safetensors"
_KINDS = {  # unsigned type of that size, all bits but the sign, exponent
    "BF16": (np.uint16, 0x7FFF, 0x7F80),
    "F16": (np.uint16, 0x7FFF, 0x7C00),
    "F32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
}
_PIECE = 32 << 20  # bytes looked at in one go


@dataclass(frozen=True)
class Found:
    """One file, looked at: when its last byte was there, what it holds, its faults."""

    path: str
    complete_at: float  # seconds since the epoch
    bytes: int
    rows: int
    digest: int  # of its token ids
    problem: str = ""


def digest(token_ids: Sequence[int]) -> int:
    """What stands for a prompt."""
    return zlib.crc32(np.asarray(token_ids, dtype="<i8").tobytes())


def is_complete(path: str) -> bool:
    """Whether the file is as long as its header says and nobody writes it."""
    try:
        with open(path, "rb") as file:
            header, start = _header(file)
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError, struct.error):
        return False
    ends = [e["data_offsets"][1] for k, e in header.items() if k != "__metadata__"]
    return size >= start + max(ends, default=0) and not _locks.held(f"{path}.lock")


def check(path: str, shape: tuple[int, int]) -> Found:
    """Look at every row; ``shape`` is [layers, hidden]."""
    stat = os.stat(path)
    try:
        rows, ids = _read(path, shape)
    except (OSError, ValueError, KeyError, struct.error) as error:
        return Found(path, stat.st_ctime, stat.st_size, 0, 0, f"{error}")
    return Found(path, stat.st_ctime, stat.st_size, rows, ids)


def _header(file: Any) -> tuple[dict[str, Any], int]:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > 1 << 20:
        raise ValueError(f"its header has {size} bytes")
    return json.loads(file.read(size)), 8 + size


def _read(path: str, shape: tuple[int, int]) -> tuple[int, int]:
    """Number of rows and digest of the token ids.

    Raises:
        ValueError: the file is damaged, or holds a row that was not computed.
    """
    with open(path, "rb") as file:
        header, start = _header(file)
        states, ids = header["hidden_states"], header["token_ids"]
        rows, *rest = states["shape"]
        if tuple(rest) != shape:
            raise ValueError(f"its rows are {rest}, not {list(shape)}")
        if states["dtype"] not in _KINDS:
            raise ValueError(f"its dtype is {states['dtype']}")
        kind, value, exponent = _KINDS[states["dtype"]]
        width = shape[0] * shape[1]
        begin, end = states["data_offsets"]
        if end - begin != rows * width * np.dtype(kind).itemsize:
            raise ValueError(f"{end - begin} bytes are not {rows} rows")
        file.seek(start + begin)
        step = max(1, _PIECE // (width * np.dtype(kind).itemsize))
        for first in range(0, rows, step):
            count = min(step, rows - first)
            piece = np.fromfile(file, kind, count * width)
            if piece.size != count * width:
                raise ValueError(f"it ends in row {first + piece.size // width}")
            bits = piece.reshape(count * shape[0], shape[1])
            _look(bits, value, exponent, first, shape[0])
        file.seek(start + ids["data_offsets"][0])
        given = np.fromfile(file, "<i8", ids["shape"][0])
        if given.size != rows:
            raise ValueError(f"it has {given.size} token ids for {rows} rows")
        return rows, zlib.crc32(given.tobytes())


def _look(bits: Any, value: int, exponent: int, first: int, layers: int) -> None:
    bits &= value
    largest = bits.max(axis=1)
    for what, wrong in (("zero", largest == 0), ("not finite", largest >= exponent)):
        if wrong.any():
            row, layer = divmod(int(wrong.argmax()), layers)
            raise ValueError(f"row {first + row} is {what} in layer {layer}")


def remove(path: str) -> None:
    """The file and its lock."""
    for name in (path, f"{path}.lock"):
        with suppress(FileNotFoundError):
            os.remove(name)


class Sweep:
    """Checks and removes files below ``storage`` as they become complete.

    Those whose token ids are in ``keep`` are moved to ``aside`` instead, for whoever
    compares them.
    """

    def __init__(
        self,
        storage: Path,
        shape: tuple[int, int],
        keep: Collection[int],
        aside: Path,
        threads: int = 4,
    ) -> None:
        self.found: dict[str, Found] = {}
        self.kept: dict[str, Path] = {}
        self._storage, self._shape, self._aside = storage, shape, aside
        self._keep = frozenset(keep)
        self._pool = ThreadPoolExecutor(threads)
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        aside.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Go on in the background: the storage does not hold all of them at once."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self, paths: Collection[str], timeout: float) -> list[str]:
        """Wait for these files; returns those that did not come."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        deadline = time.monotonic() + timeout
        while True:
            self._round()
            left = [path for path in paths if path and path not in self.found]
            if not left or time.monotonic() > deadline:
                self._pool.shutdown()
                return left
            time.sleep(0.02)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._round()

    def _round(self) -> None:
        new = [p for p in _files(self._storage) if p not in self._seen]
        whole = [path for path in new if is_complete(path)]
        self._seen.update(whole)
        list(self._pool.map(self._take, whole))

    def _take(self, path: str) -> None:
        one = check(path, self._shape)
        if one.digest in self._keep and not one.problem:
            target = self._aside / os.path.basename(path)
            os.replace(path, target)
            self.kept[path] = target
        remove(path)
        self.found[path] = one


def _files(storage: Path) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(storage) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                yield entry.path


def problems(
    paths: Sequence[str],
    prompts: Sequence[Sequence[int]],
    found: dict[str, Found],
) -> list[str]:
    """What is wrong with the files of these prompts, a sentence each."""
    said = []
    if len(set(paths)) != len(prompts):
        said.append(f"{len(set(paths))} files were named for {len(prompts)} prompts")
    for path, prompt in zip(paths, prompts, strict=True):
        name, one = os.path.basename(path), found.get(path)
        if not path:
            said.append(f"no file was named for a prompt of {len(prompt)} tokens")
        elif one is None:
            said.append(f"{name} did not come")
        elif one.problem:
            said.append(f"{name}: {one.problem}")
        elif one.rows != len(prompt):
            said.append(f"{name} has {one.rows} rows for {len(prompt)} tokens")
        elif one.digest != digest(prompt):
            said.append(f"{name} has the token ids of another prompt")
    return said
