"""The harness with a tiny model on the CPU: measured, checked, and not again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")
from benchmarks.throughput import STOPPED, parse

ROOT = Path(__file__).parents[2]


def test_what_it_does_not_take(capsys):
    for bad in (["--modes", "tap,fast"], ["--lengths", "long"], ["--parts", "x"]):
        with pytest.raises(SystemExit):
            parse(bad)
    assert "--parts does not take 'x'" in capsys.readouterr().err


@pytest.mark.extended
@pytest.mark.e2e
@pytest.mark.envs
def test_plain_and_tap_on_the_cpu(environment, tmp_path):
    other = environment("vllm-0.32.0")
    results = tmp_path / "results.json"
    command = [
        *(other.python, "-m", "benchmarks.throughput", "--device", "cpu"),
        *("--shapes", "tiny", "--modes", "plain,tap", "--lengths", "64,mixed"),
        *("--longest", "200", "--repeats", "2", "--tokens", "512"),
        *("--parts", "prefill,decode,slow,files,startup", "--decode-tokens", "8"),
        *("--sink-mb", "0.5", "--slow-s", "6", "--results", str(results)),
        *("--storage", str(tmp_path / "hs"), "--work", str(tmp_path / "work")),
    ]
    variables = other.environment({"VLLM_CPU_KVCACHE_SPACE": "1"})

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more],
            check=False,
            capture_output=True,
            text=True,
            timeout=1500,
            cwd=ROOT,
            env=variables,
        )

    done = run("--limit-s", "20")
    assert done.returncode == STOPPED, done.stdout + done.stderr
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = json.loads(results.read_text())
    prefill = [e for e in found["measurements"] if e["what"] in ("64", "mixed")]
    assert len(prefill) == 2 * 2 * 2 * 2  # transports, cells, modes, rounds
    assert not any(entry["problems"] for entry in found["measurements"])
    for entry in prefill:
        if entry["mode"] == "tap":
            assert entry["files"] == entry["prompts"]
            assert entry["compared"] and all(
                max(one["distance"]) < 1e-5 for one in entry["compared"]
            )
    (slow,) = (e for e in found["measurements"] if e["what"] == "slow")
    assert slow["bytes"] / slow["seconds"] < 1.2 * slow["sink_bytes"]
    assert {entry["how"] for entry in found["files"]} == {"plain", "sink"}
    assert list((tmp_path / "hs" / "tap").iterdir()) == []
    before = results.read_text()
    assert run().returncode == 0 and results.read_text() == before
