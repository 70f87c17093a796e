"""In every process of a measured server, by its own entry point of vLLM's plugins.

Fills dummy weights so that layers differ, makes the sink as slow as asked, and tells
what the worker holds. Does nothing without SPECSHIM_BENCH_* in the environment.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from typing import Any

import wrapt

FILL = "SPECSHIM_BENCH_FILL"
RATE = "SPECSHIM_BENCH_SINK_BYTES"  # a second, of all writers together
STATS = "SPECSHIM_BENCH_STATS"  # a file
STEPS = "SPECSHIM_BENCH_STEPS"  # a file
_INTERVAL = 0.25


def register() -> None:
    """Hooks on import, so that no process imports more than it would."""
    if os.environ.get(FILL):
        _when("vllm.model_executor.model_loader.dummy_loader", _fill_dummies)
    if os.environ.get(RATE):
        _when("specshim.tap.sink", _slow_down)
    if os.environ.get(STATS):
        _when("specshim.tap.worker", _tell)
    if os.environ.get(STEPS):
        for module in ("gpu.model_runner", "gpu_model_runner"):  # V2, V1
            _when(f"vllm.v1.worker.{module}", _note_steps)


def _when(module: str, act: Any) -> None:
    wrapt.register_post_import_hook(act, module)


def _fill_dummies(module: Any) -> None:
    loader = module.DummyModelLoader
    original = loader.load_weights

    def load_weights(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, model, *args, **kwargs)
        fill(model)
        return result

    if getattr(original, "__name__", "") == "load_weights":
        loader.load_weights = load_weights


def fill(model: Any) -> None:
    """Weights that keep a state's size, by their names: vLLM's own are ±0.001, with
    which every layer would pass on the embeddings and could stand for any other."""
    import torch

    with torch.no_grad():
        for path, module in model.named_modules():
            for name, weight in module.named_parameters(recurse=False):
                if not weight.is_floating_point() or weight.element_size() < 2:
                    continue
                source = torch.Generator(device=weight.device)
                source.manual_seed(zlib.crc32(f"{path}.{name}".encode()))
                if weight.dim() > 1:
                    wide = "embed" in path
                    std = 1.0 if wide else weight.shape[-1] ** -0.5
                    weight.data.normal_(0, std, generator=source)
                elif "Norm" in type(module).__name__:
                    middle = 0.0 if "Gemma" in type(module).__name__ else 1.0
                    weight.data.normal_(middle, 0.05, generator=source)


def _slow_down(module: Any) -> None:
    rate, lock = float(os.environ[RATE]), threading.Lock()
    free_at = [0.0]
    original = module.FileSink.put

    def put(self: Any, descriptor: int, start: int, rows: memoryview) -> None:
        original(self, descriptor, start, rows)
        with lock:
            now = time.monotonic()
            free_at[0] = max(free_at[0], now) + len(rows) / rate
            wait = free_at[0] - now
        time.sleep(wait)

    module.FileSink.put = put


_SPENT: dict[str, float] = {}
"""Seconds in parts of the forward's thread, and calls, since the start."""


def _timed(owner: Any, method: str, name: str) -> None:
    """Count how long ``owner.method`` takes: by the clock, and of this thread's CPU."""
    original = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return original(*args, **kwargs)
        finally:
            spent = {
                f"{name}_seconds": time.perf_counter() - wall,
                f"{name}_cpu_seconds": time.thread_time() - cpu,
                f"{name}_calls": 1.0,
            }
            for key, value in spent.items():
                _SPENT[key] = _SPENT.get(key, 0.0) + value

    setattr(owner, method, timed)


def _tell(module: Any) -> None:
    _timed(module.TapWorker, "begin", "begin")
    _timed(module.TapWorker, "step", "step")
    _timed(module.TapWorker, "_open", "open")  # inside step
    _timed(module.TapWorker, "_submit", "submit")  # inside step
    from specshim.tap.host_memory import HostMemory

    _timed(HostMemory, "take", "memory")  # inside submit: waits for memory
    _timed(module.Backlog, "admit_all", "admit")  # inside step: waits for room
    original = module.TapWorker.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        threading.Thread(target=_write_stats, args=(self,), daemon=True).start()

    module.TapWorker.__init__ = init


def _write_stats(worker: Any) -> None:
    with open(os.environ[STATS], "a", buffering=1) as file:
        while True:
            file.write(json.dumps(stats(worker)) + "\n")
            time.sleep(_INTERVAL)


def stats(worker: Any) -> dict[str, float]:
    """Unwritten bytes, age of the oldest of them, pinned bytes in use and reserved."""
    import torch

    backlog = worker._backlog
    with backlog._changed:
        held = [(one.since, one.left) for one in backlog._held.values()]
    found = {
        **_SPENT,
        "time": time.time(),
        "backlog_bytes": sum(size for _, size in held),
        "backlog_seconds": time.monotonic() - held[0][0] if held else 0.0,
    }
    host = getattr(torch.cuda, "host_memory_stats", None)
    if host is not None and torch.cuda.is_initialized():
        said = host()
        found["pinned_used"] = said.get("active_bytes.current", 0)
        found["pinned_reserved"] = said.get("allocated_bytes.current", 0)
    return found


def _note_steps(module: Any) -> None:
    """A line of JSON for each step: when the runner and when the GPU was at it."""
    import torch

    runner = module.GPUModelRunner
    if not hasattr(runner, "sample_tokens"):
        return
    events: list[Any] = []
    base: list[Any] = []
    execute, sample = runner.execute_model, runner.sample_tokens

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def execute_model(self: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        if not base:
            torch.cuda.synchronize()
            base.extend((mark(), time.time()))
            threading.Thread(target=_write_steps, args=(events, base)).start()
        count = getattr(output, "total_num_scheduled_tokens", 0)
        if events and len(events[-1]) == 3:  # nothing was sampled: no step of ours
            events.pop()
        events.append([count, time.time(), mark()])
        return execute(self, output, *args, **kwargs)

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = sample(self, *args, **kwargs)
        events[-1] += [mark(), time.time()]
        return result

    runner.execute_model, runner.sample_tokens = execute_model, sample_tokens


def _write_steps(events: list[Any], base: list[Any]) -> None:
    event, begin = base
    with open(os.environ[STEPS], "a", buffering=1) as file:
        while threading.main_thread().is_alive():
            time.sleep(1)
            while events and len(events[0]) == 5 and events[0][3].query():
                count, called, first, last, left = events.pop(0)
                gpu = [begin + event.elapsed_time(e) / 1000 for e in (first, last)]
                said = {"tokens": count, "runner": [called, left], "gpu": gpu}
                file.write(json.dumps(said) + "\n")
