"""Results on disk, what is not measured again, and what the README makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")  # as the sink needs
from bench_values import measured

from benchmarks.report import findings
from benchmarks.results import Results
from benchmarks.summary import summary
from benchmarks.table import BEGIN, END, ROOT, load, placed, render

ENGINE = {k: measured("stock", 0, 0)[k] for k in ("release", "device", "shape")}
STOCK = {**ENGINE, "transport": "offline", "mode": "stock", "error": "ValueError: no"}
RUN = {"id": "1", "date": "2026-12-01 10:00", "gpus": ["NVIDIA H200, driver 1"]}


def test_an_entry_is_on_disk_at_once_and_found_by_the_next_run(tmp_path):
    first = Results(tmp_path / "r.json")
    first.add("measurements", measured("tap", 0, 99))
    again = Results(tmp_path / "r.json")
    assert again.has("measurements", measured("tap", 0, 1))
    assert not again.has("measurements", measured("tap", 1, 1))
    assert not again.has("measurements", measured("plain", 0, 1))
    again.add("measurements", measured("tap", 0, 98))
    (entry,) = json.loads((tmp_path / "r.json").read_text())["measurements"]
    assert entry["tokens_per_second"] == 98


def test_shares_are_of_the_same_round_of_the_same_run():
    entries = [
        measured("plain", 0, 100),
        measured("tap", 0, 99),
        measured("plain", 1, 50),  # the machine was slow, for both
        measured("tap", 1, 49.5),
        measured("tap", 2, 10),  # without its plain
        measured("tap", 3, 1, problems=["a file did not come"]),
    ]
    (line,) = summary({"measurements": entries, "engines": [STOCK]})
    assert line.shares["tap"] == 0.99 and line.values["plain"] == 75
    assert line.rounds == {"plain": 2, "tap": 3} and line.problems == 1
    assert line.unable == {"stock": "ValueError: no"}


def test_the_table_and_its_place():
    entries = [measured("plain", 0, 44000), measured("tap", 0, 43560)]
    data = {"runs": [RUN], "engines": [STOCK], "measurements": entries}
    table = render(data)
    row = (
        "| llama-8b | offline | 1024 tokens | 0.24.0 | 44,000 tok/s | 43,560 tok/s | "
        "cannot run | 99.0 % |"
    )
    assert row in table and "NVIDIA H200" in table and "2026-12-01" in table
    page = placed(f"a\n{BEGIN}\nold\n{END}\nb", table)
    assert page == f"a\n{BEGIN}\n{table}\n{END}\nb"
    assert placed("no marks", table) == "no marks"
    assert render({"measurements": [], "engines": [], "runs": []}) == ""


def test_the_readme_has_the_table_of_the_results():
    page = Path(ROOT / "README.md").read_text()
    table = render(load())
    assert placed(page, table) == page, "run python -m benchmarks.table --write"
    assert not table or table in page, "README.md has no marks for the table"


def test_goals_that_are_reached_and_missed():
    slow = measured("tap", 0, 3000, what="slow", bytes=950, seconds=10.0)
    slow |= {"sink_bytes": 100, "rss_gain_mib": 10, "worker": {"backlog_seconds": 9}}
    engines = [
        {**ENGINE, "transport": "offline", "mode": mode, "kv_gib": gib, **more}
        for mode, gib, more in (
            ("plain", 20.0, {}),
            ("tap", 19.48, {"tap_gpu_gib": 0.516}),
        )
    ]
    files = [
        {"storage": "tmpfs", "block_bytes": 8 << 20, "repeat": 0, "how": how}
        | {"bytes_per_second": speed}
        for how, speed in (("plain", 2e9), ("sink", 1.5e9))
    ]
    data = {
        "engines": engines,
        "measurements": [measured("plain", 0, 100), measured("tap", 0, 98.9), slow],
        "startup": [{"release": "0.24.0", "seconds": 0.1}],
        "files": files,
    }
    found = {(one.goal, one.figure): one.reached for one in findings(data)}
    assert found == {
        ("tap of plain", "98.9 %"): False,
        ("KV cache", "0.52 GiB less, 0.52 stated (None and None blocks)"): True,
        ("slow sink", "95 % of the sink's speed"): True,
        ("slow sink", "10 MiB gained in the second half"): True,
        ("slow sink", "oldest rows 9.0 s"): False,
        ("plugin", "100 ms, at most 100"): True,
        ("file writing", "75 % of a plain writer (1.50 GB/s)"): False,
        ("files", "0 whole files, 0 compared with the reference"): True,
    }
