"""Loads vLLM's plugins twice, here and in spawned and forked processes; prints JSON."""

import json
import multiprocessing
import time
from typing import Any


def look(load: bool) -> dict[str, Any]:
    """What vLLM's own loader does, twice, as two processes' worth of callers do."""
    import vllm.plugins
    from vllm.engine.arg_utils import EngineArgs

    took = 0.0
    if load:
        from importlib.metadata import entry_points

        points = entry_points(group="vllm.general_plugins")
        start = time.process_time()
        for _ in range(2):
            for point in points:
                if point.name == "specshim":
                    point.load()()
        took = time.process_time() - start
        vllm.plugins.plugins_loaded = False
        vllm.plugins.load_general_plugins()
    import specshim

    depth, function = 0, vars(EngineArgs)["create_engine_config"]
    while hasattr(function, "__wrapped__"):
        depth, function = depth + 1, function.__wrapped__
    status = specshim.status()
    return {
        "depth": depth,
        "seconds": took,
        "failures": status["failures"],
        "state": status["patches"].get("reroute", {}).get("state"),
    }


def child(queue: Any, load: bool) -> None:
    queue.put(look(load))


def in_process(method: str, load: bool) -> dict[str, Any]:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, load))
    process.start()
    found: dict[str, Any] = queue.get(timeout=300)
    process.join()
    return found


if __name__ == "__main__":
    report = {"here": look(True)}
    report["fork"] = in_process("fork", False)  # inherits both patch and ledger
    report["fork, loaded again"] = in_process("fork", True)
    report["spawn"] = in_process("spawn", True)
    print(json.dumps(report))
