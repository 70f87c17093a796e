"""Families on a real engine: a telling few in every run, all in the extended."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from other_python import OtherPython

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from family_runs import BY_NAME, RUNS

RESULTS = {
    (r["release"], r["model"], r["mode"]): r
    for r in json.loads((HERE / "results.json").read_text())
}
# Layers that give something else than a pending residual: a stale one, the stream
# alone, several streams, a leading axis.
TELLING = ("granite4", "granite", "gemma3n", "llama/transformers backend")


def run(
    python: OtherPython, names: Sequence[str], folder: Path
) -> dict[str, dict[str, Any]]:
    """Results by name of a run, from the command."""
    results = folder / "results.json"
    done = python.run(
        *(str(HERE / "run_families.py"), *names),
        *("--results", str(results), "--folder", str(folder)),
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cells = {(r["model"], r["mode"]): r for r in json.loads(results.read_text())}
    return {name: cells[BY_NAME[name].model, BY_NAME[name].mode] for name in names}


@pytest.mark.e2e
def test_layers_that_give_something_else_than_a_pending_residual(environment, tmp_path):
    seen = run(environment("vllm-0.32.0"), TELLING, tmp_path)
    assert {name: cell["result"] for name, cell in seen.items()} == dict.fromkeys(
        TELLING, "right"
    ), seen
    assert all(cell["worst"] < 1e-5 for cell in seen.values())


@pytest.fixture(scope="module")
def every(environment, tmp_path_factory):
    """All runs on 0.32.0, one after another in one command."""
    folder = tmp_path_factory.mktemp("families")
    return run(environment("vllm-0.32.0"), [r.name for r in RUNS], folder)


@pytest.mark.extended
@pytest.mark.parametrize("name", [run.name for run in RUNS])
def test_what_the_page_says_still_holds(name, every):
    recorded = RESULTS.get(("0.32.0", BY_NAME[name].model, BY_NAME[name].mode))
    if recorded is None:
        pytest.skip("no result yet: nox -s families")
    assert every[name]["result"] == recorded["result"], every[name]
    if recorded["dtype"] == "float32" and "worst" in recorded:
        assert every[name]["worst"] < 1e-5
