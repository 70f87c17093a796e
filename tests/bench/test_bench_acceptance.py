"""The acceptance experiment's bookkeeping: what is run again, what its table says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distributions

import pytest

from benchmarks.acceptance import acceptance

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="toy"} 30.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="toy"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="toy"} 120.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="toy"} 50.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="toy"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 40.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="toy"} 1.7e+09
"""


def test_acceptance_length_is_summed_over_engines():
    assert acceptance.counted(METRICS) == {"length": 2.5, "drafts": 40}


def test_no_drafts_are_no_length():
    with pytest.raises(acceptance.StageFailed, match="drafted nothing"):
        acceptance.counted(METRICS.replace("30.0", "0.0").replace("10.0", "0.0"))


def test_table_says_what_there_is(tmp_path):
    left = {
        "states-right": {"rows": 640, "zero_rows": 0},
        "states-stock": {"rows": 640, "zero_rows": 600},
        "evaluate-right": {"length": 2.256, "rates": [0.75, 0.4, 0.106]},
        "decode-stock": {"failed": "StageFailed: it died"},
    }
    for name, found in left.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"failed": None} | found))
    note, _, right, stock = acceptance.table(tmp_path).splitlines()
    assert "as on several GPUs" in note
    assert right.split() == ["right", "0/640", "2.26", "75.0%", "40.0%", "10.6%", "?"]
    assert stock.split() == ["stock", "600/640", "?", "failed"]


def test_what_failed_is_run_again_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["acceptance.py", "--folder", str(tmp_path)])
    calls = []

    def stage(options, kind):
        calls.append(kind)
        if calls == ["right", "stock"]:
            raise acceptance.StageFailed("not today")
        return {"of": kind}

    monkeypatch.setattr(acceptance, "STAGES", {"states": stage})
    assert acceptance.main() == 1
    found = json.loads((tmp_path / "states-stock.json").read_text())
    assert found["failed"] == "StageFailed: not today"
    assert acceptance.main() == 0
    assert acceptance.main() == 0
    assert calls == ["right", "stock", "stock"]
    found = json.loads((tmp_path / "states-stock.json").read_text())
    assert (found["failed"], found["of"]) == (None, "stock")


def test_stocks_worker_is_a_process_of_its_own(tmp_path, monkeypatch):
    argv = ["acceptance.py", "--folder", str(tmp_path), "--device", "cuda"]
    argv += ["--server-arguments=--gdn-prefill-backend triton"]
    monkeypatch.setattr(sys, "argv", argv)
    options = acceptance.arguments()
    stock, off = acceptance.server(options, "stock", 1)
    right, on = acceptance.server(options, "right", 1)
    assert (off, on) == ({"SPECSHIM": "0"}, {})
    assert stock[-2:] == ["--distributed-executor-backend", "mp"]
    assert right[-2:] == ["--gdn-prefill-backend", "triton"]


def test_vllm_finds_the_plugin_that_denies_amx(tmp_path):
    (found,) = distributions(path=[str(acceptance.without_amx(tmp_path))])
    (plugin,) = found.entry_points
    assert (plugin.group, plugin.value) == (
        "vllm.general_plugins",
        "without_amx:register",
    )
    said = subprocess.run(
        [sys.executable, "-c", "import without_amx; print(without_amx.register)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert said.stdout.startswith("<function register"), said.stderr
