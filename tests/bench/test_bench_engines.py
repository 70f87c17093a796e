"""What is read from a server's log, and the command line that starts it."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
from benchmarks.server_log import of_log, said_last
from benchmarks.setup import flags

LOG = """INFO [gpu_worker.py:441] Available KV cache memory: 62.15 GiB
INFO [kv_cache_utils.py:1708] GPU KV cache size: 509,120 tokens
\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|##  | 25/51 [00:01]
\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|####| 51/51 [00:02]
\rCapturing CUDA graphs (decode, FULL): 100%|####| 35/35 [00:01<00:00, 20.1it/s]
INFO [gpu_model_runner.py] Graph capturing finished in 4 secs, took 0.61 GiB
"""
FAILED = """(EngineCore pid=3) ERROR ValueError: Hybrid KV cache manager is disabled
(EngineCore pid=3) ValueError: Hybrid KV cache manager is disabled but failed
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_what_vllm_says_of_its_memory_and_graphs(tmp_path):
    log = tmp_path / "log"
    log.write_text(LOG)
    assert of_log(log) == {
        "kv_gib": 62.15,
        "kv_tokens": 509120,
        "graphs": {"mixed prefill-decode, PIECEWISE": 51, "decode, FULL": 35},
        "graphs_gib": 0.61,
        "graph_seconds": 4,
    }


def test_why_a_server_did_not_come_up(tmp_path):
    log = tmp_path / "log"
    log.write_text(FAILED)
    why = "ValueError: Hybrid KV cache manager is disabled but failed"
    assert said_last(log) == why
    log.write_text("killed\n")
    assert "says nothing" in said_last(log)


def test_arguments_on_a_command_line():
    found = {"enable_prefix_caching": False, "enforce_eager": True, "a_b": {"c": 1}}
    assert flags(found) == [
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--a-b",
        '{"c": 1}',
    ]
