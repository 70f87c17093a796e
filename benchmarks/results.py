"""The results file: what was measured, where, when, and with which releases."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECTIONS = ("runs", "engines", "measurements", "files", "startup")
KEYS: Mapping[str, tuple[str, ...]] = {
    "engines": ("release", "device", "shape", "transport", "mode"),
    "measurements": (
        *("release", "device", "shape", "transport", "what", "mode", "repeat"),
    ),
    "files": ("device", "storage", "threads", "block_bytes", "repeat", "how"),
    "startup": ("release", "device", "what", "repeat"),
}
"""What makes an entry of a section the same as another: it is not measured again."""


class Results:
    """Entries by section; every addition is on disk before it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.data: dict[str, list[dict[str, Any]]] = {name: [] for name in SECTIONS}
        if path.exists():
            read: dict[str, Any] = json.loads(path.read_text())
            self.data.update(read)

    def find(self, section: str, **key: Any) -> dict[str, Any] | None:
        """The latest entry of ``section`` with these values."""
        wanted = key.items()
        found = [e for e in self.data[section] if wanted <= e.items()]
        return found[-1] if found else None

    def has(self, section: str, entry: Mapping[str, Any]) -> bool:
        """Whether what identifies ``entry`` is there."""
        key = {name: entry[name] for name in KEYS[section]}
        return self.find(section, **key) is not None

    def add(self, section: str, entry: dict[str, Any]) -> None:
        """Keep ``entry``, instead of an earlier one of the same key."""
        names = KEYS.get(section, ())
        with self._lock:
            if names:
                self.data[section] = [
                    other
                    for other in self.data[section]
                    if any(other.get(name) != entry[name] for name in names)
                ]
            self.data[section].append(entry)
            self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".draft")
        lines = []
        for name, entries in self.data.items():  # a line each, for the diff
            body = ",\n".join("  " + json.dumps(entry) for entry in entries)
            lines.append(
                f" {json.dumps(name)}: [\n{body}\n ]" if body else f' "{name}": []'
            )
        draft.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        os.replace(draft, self.path)


def release_of(package: str) -> str:
    """The installed release, whatever the distribution is called; "" for none."""
    for name in importlib.metadata.packages_distributions().get(package, ()):
        return importlib.metadata.version(name)
    return ""


def gpus() -> list[dict[str, Any]]:
    """Name, driver and memory (GiB: all, used) of each GPU; none without nvidia-smi."""
    fields = "name,driver_version,memory.total,memory.used"
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in said.splitlines():
        name, driver, total, used = (part.strip() for part in line.split(","))
        memory = {"gib": int(total) / 1024, "used_gib": int(used) / 1024}
        found.append({"name": name, "driver": driver, **memory})
    return found


def facts(storage: Path) -> dict[str, Any]:
    """When, on what, with which releases."""
    memory = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines()
    )
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "gpus": [f"{gpu['name']}, driver {gpu['driver']}" for gpu in gpus()],
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory["MemTotal"].split()[0]) / (1 << 20), 1),
        "storage": file_system(storage),
        "python": platform.python_version(),
        "releases": {
            name: release_of(name)
            for name in ("specshim", "vllm", "torch", "transformers", "safetensors")
        },
        "commit": _commit(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _commit() -> str:
    root = Path(__file__).parent.parent
    try:
        return subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def file_system(folder: Path) -> str:
    """Its type, by the longest mount point above ``folder``."""
    real, best, kind = os.path.realpath(folder), "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, its, *_ = line.split()
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, its
    return kind
