"""What a measured server is started with: arguments, variables, our plugins."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.cells import MODES, Shape
from benchmarks.results import release_of

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from stock_request import stock_request

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "engine"
_NO_CHUNKS_UNTIL = "0.24"  # stock extraction before it refuses chunked prefill


@dataclass(frozen=True)
class Setup:
    """What a server is started with."""

    shape: Shape
    mode: str
    model: Path
    storage: Path
    work: Path
    longest: int  # tokens of a prompt
    batched: int  # max_num_batched_tokens
    device: str = "cuda"
    share: float = 0.9  # of the GPU's memory
    kv_gib: float = 0.0  # of the KV cache; 0: what is left of the share
    eager: bool = False
    sink_bytes: float = 0.0  # a second; 0: as fast as it goes
    start_seconds: float = 900.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        slow = "-slow" if self.sink_bytes else ""
        return f"{self.shape.name}-{self.mode}{slow}"

    @property
    def stats(self) -> Path:
        """Where the worker tells of its backlog."""
        return self.work / f"{self.name}.stats"


def arguments(setup: Setup) -> dict[str, Any]:
    """vLLM's arguments: the same for all modes, but for those of extraction."""
    found: dict[str, Any] = {
        "model": str(setup.model),
        "dtype": setup.shape.dtype,
        "max_model_len": setup.longest + 16,
        "max_num_batched_tokens": setup.batched,
        "enable_prefix_caching": False,
        **setup.shape.options,
    }
    release = release_of("vllm")
    if setup.shape.is_old(release):
        found.update(setup.shape.old_options)
    if setup.eager:
        found["enforce_eager"] = True
    if setup.device == "cuda":
        found["gpu_memory_utilization"] = setup.share
        if setup.kv_gib:
            found["kv_cache_memory_bytes"] = int(setup.kv_gib * (1 << 30))
    if not setup.shape.tiny:
        found["load_format"] = "dummy"
    if MODES[setup.mode].extracts:
        found.update(stock_request(setup.storage, setup.shape.layer_ids))
        if setup.mode == "stock" and Version(release) < Version(_NO_CHUNKS_UNTIL):
            found["enable_chunked_prefill"] = False
    return {**found, **setup.options}


def flags(found: Mapping[str, Any]) -> list[str]:
    """The arguments on a command line."""
    written = []
    for name, value in found.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            written.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = json.dumps(value) if isinstance(value, dict | list) else str(value)
            written += [f"--{flag}", text]
    return written


def variables(setup: Setup) -> dict[str, str]:
    """The environment: nothing of ours but what the mode says."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECSHIM")}
    found = {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # only of use to the reference
        "SPECSHIM_BENCH_FILL": "1",
        **MODES[setup.mode].variables,
    }
    paths = [*plugin_path(setup.work), kept.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if setup.device == "cpu":
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        core = min(os.sched_getaffinity(0))  # the same for every mode
        found.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(core))
    if setup.mode == "tap":
        found["SPECSHIM_BENCH_STATS"] = str(setup.stats)
    if kept_steps := os.environ.get("SPECSHIM_BENCH_STEPS"):
        found["SPECSHIM_BENCH_STEPS"] = f"{kept_steps}-{setup.name}"
    if setup.sink_bytes:
        found["SPECSHIM_BENCH_SINK_BYTES"] = str(setup.sink_bytes)
    return found


def plugin_path(work: Path) -> list[str]:
    """For PYTHONPATH: engine/specshim_bench.py with an entry point.

    And that of specshim, where it is not installed but read from this checkout.
    """
    folder = work / "plugin"
    info = folder / "specshim_bench-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    points, paths = ["specshim_bench = specshim_bench:register"], []
    there = importlib.metadata.entry_points(group="vllm.general_plugins")
    if "specshim" not in there.names:
        points.append("specshim = specshim.plugin:register")
        paths = [str(ROOT)]
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: specshim-bench\nVersion: 0\n"
    )
    text = "\n".join(["[vllm.general_plugins]", *points, ""])
    (info / "entry_points.txt").write_text(text)
    return [str(folder), str(SCRIPTS), *paths]
