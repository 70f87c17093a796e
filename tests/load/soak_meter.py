"""What a server's processes hold over time, and whether that stays flat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@dataclass(frozen=True)
class Bound:
    """What may be gained over the second half of a run: a share of the median, or so
    much, whichever is more."""

    share: float
    least: float


BOUNDS = {
    "rss_mib": Bound(0.02, 32),
    "descriptors": Bound(0.1, 8),
    "disk_mib": Bound(0.2, 16),
    "partial_files": Bound(0.2, 16),
    "lock_files": Bound(0.2, 32),
}


@dataclass
class Reading:
    """One look at the server. Processes by their number and title."""

    seconds: float
    samples: int
    rss_mib: dict[str, float] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)
    disk_mib: float = 0.0
    files: int = 0
    partial_files: int = 0
    lock_files: int = 0


class Meter:
    """Reads every ``interval`` seconds in a thread of its own, until stopped."""

    def __init__(
        self, pid: int, storage: Path, interval: float, samples: Callable[[], int]
    ) -> None:
        self.readings: list[Reading] = []
        self._pid, self._storage, self._samples = pid, storage, samples
        self._interval = interval
        self._start = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[Reading]:
        """All readings."""
        self._stop.set()
        self._thread.join()
        return self.readings

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            seconds = time.monotonic() - self._start
            self.readings.append(
                read(self._pid, self._storage, seconds, self._samples())
            )


def read(pid: int, storage: Path, seconds: float = 0.0, samples: int = 0) -> Reading:
    """One look at the processes of session ``pid`` and the files of the server."""
    reading = Reading(round(seconds, 1), samples)
    for process in processes(pid):
        with suppress(OSError, IndexError):
            name = f"{process}:{_title(process)}"
            resident = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            reading.rss_mib[name] = round(resident * PAGE_BYTES / MIB, 1)
            reading.descriptors[name] = len(os.listdir(f"/proc/{process}/fd"))
    size = 0
    with suppress(FileNotFoundError):
        for entry in os.scandir(storage):
            with suppress(FileNotFoundError):
                size += entry.stat().st_size
            reading.files += 1
            reading.lock_files += entry.name.endswith(".lock")
            reading.partial_files += entry.name.endswith(".partial")
    reading.disk_mib = round(size / MIB, 2)
    return reading


def processes(session: int) -> list[int]:
    """The processes of a session, in order."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, IndexError, ValueError):
            stat = Path(f"/proc/{name}/stat").read_text()
            if int(stat.rpartition(")")[2].split()[3]) == session:
                found.append(int(name))
    return sorted(found)


def _title(pid: int) -> str:
    text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return text if text.startswith("VLLM::") else (text.split() or ["?"])[0][-12:]


@dataclass(frozen=True)
class Trend:
    """A series' median, what a line through its second half gains, and the bound."""

    name: str
    median: float
    gained: float
    bound: float

    @property
    def flat(self) -> bool:
        return self.gained <= self.bound


def trends(readings: Sequence[Reading]) -> list[Trend]:
    """Memory and descriptors of each process that was there throughout, and files."""
    half = readings[len(readings) // 2 :]
    seconds = [reading.seconds for reading in half]
    found = []
    for kind, bound in BOUNDS.items():
        values = [getattr(reading, kind) for reading in half]
        if isinstance(values[0], dict):
            names = set.intersection(*(set(value) for value in values))
            series = {f"{kind} {n}": [value[n] for value in values] for n in names}
        else:
            series = {kind: values}
        for name, numbers in sorted(series.items()):
            middle = median(numbers)
            gained = slope(seconds, numbers) * (seconds[-1] - seconds[0])
            allowed = max(bound.share * middle, bound.least)
            found.append(Trend(name, middle, round(gained, 2), round(allowed, 2)))
    return found


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Of the least-squares line."""
    mean_time, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_time) ** 2 for t in times)
    if not spread:
        return 0.0
    pairs = zip(times, values, strict=True)
    return sum((t - mean_time) * (v - mean) for t, v in pairs) / spread


def as_json(readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """The readings as they go into the report's file."""
    return [asdict(reading) for reading in readings]
