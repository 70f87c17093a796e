"""Host memory of a server over time: the soak's meter, and what the worker tells."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tests" / "load"))
import soak_meter

_COUNTED = ("_calls", "_cpu_seconds", "_seconds")
_HELD = ("backlog_seconds",)


@contextmanager
def metered(
    pid: int, storage: Path, begin: float, interval: float
) -> Iterator[dict[str, list[Any]]]:
    """Fills what it yields on leaving: seconds, and MiB resident of all processes.

    Args:
        pid: the session of the server's processes.
        storage: where its files are.
        begin: what seconds count from, by the same clock as ``time.time()``.
        interval: seconds between two readings.
    """
    found: dict[str, list[Any]] = {"seconds": [], "rss_mib": [], "files_mib": []}
    start = time.time() - begin
    meter = soak_meter.Meter(pid, storage, interval, lambda: 0)
    try:
        yield found
    finally:
        for reading in meter.stop():
            found["seconds"].append(round(start + reading.seconds, 1))
            found["rss_mib"].append(round(sum(reading.rss_mib.values())))
            found["files_mib"].append(round(reading.disk_mib))


def told(stats: Path, since: float, until: float) -> dict[str, float]:
    """What the worker said between two times: see specshim_bench.stats.

    Of what it held the most, of what it counts since its start the difference.
    """
    most: dict[str, float] = {}
    least: dict[str, float] = {}
    lines = stats.read_text().splitlines() if stats.exists() else []
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:  # being written
            continue
        if since <= said.pop("time") <= until:
            most = {k: max(v, most.get(k, v)) for k, v in said.items()}
            least = {k: min(v, least.get(k, v)) for k, v in said.items()}
    for name in most:
        if name.endswith(_COUNTED) and name not in _HELD:
            most[name] -= least[name]
    return {name: round(value, 4) for name, value in most.items()}


def gain(seconds: list[float], values: list[float]) -> float:
    """What a line through the second half of a series gains."""
    half = len(values) // 2
    times, last = seconds[half:], values[half:]
    if len(last) < 2:
        return 0.0
    return soak_meter.slope(times, last) * (times[-1] - times[0])
