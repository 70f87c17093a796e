"""What the plugin adds to the start of every process of vLLM's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.setup import ROOT

LIMIT_S = 0.3
_CODE = """
import json, sys, time
import vllm.plugins, vllm.engine.arg_utils
before = set(sys.modules)
start, cpu = time.perf_counter(), time.process_time()
from specshim.plugin import register
register()
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
new = len(set(sys.modules) - before)
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "modules": new}))
"""


def measure(bench: Any) -> None:
    """Fresh processes with vLLM imported; the first reads the files from disk."""
    for repeat in range(bench.args.repeats):
        entry = {
            "run": bench.run["id"],
            "release": bench.release,
            "device": bench.args.device,
            "what": "register",
            "repeat": repeat,
        }
        if bench.results.has("startup", entry):
            continue
        bench.limit.need(60.0, "the start of a process")
        bench.note_run()
        entry.update(once())
        bench.results.add("startup", entry)
        cpu = f"{1000 * entry['cpu_seconds']:.0f} ms CPU"
        bench.say(f"the plugin takes {1000 * entry['seconds']:.0f} ms, {cpu}")


def once() -> dict[str, Any]:
    """Seconds of importing and registering, by both clocks, and how many modules."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECSHIM")}
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=kept,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
