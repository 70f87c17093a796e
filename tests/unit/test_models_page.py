"""docs/models.md and README.md say what the runs and vLLM's registry say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FAMILIES = Path(__file__).parent.parent / "families"
sys.path.insert(0, str(FAMILIES))
from models_page import PAGES, load, render, untried
from registry import REGISTRY, read_registry


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_up_to_date(path):
    assert render(path) == path.read_text(), "run python tests/families/models_page.py"


def test_every_cell_was_filled_by_a_run_of_a_family_that_exists():
    from family_runs import RUNS

    results, _ = load()
    known = {(run.model, run.mode) for run in RUNS}
    assert {(r["model"], r["mode"]) for r in results} <= known
    assert all(r["date"] and r["release"] for r in results)
    assert all("worst" in r for r in results if r["result"] == "right")
    assert all(r.get("error") for r in results if r["result"] != "right")


def test_an_architecture_that_ran_is_not_untried():
    results, registry = load()
    text = untried(results, registry)
    assert "`LlamaForCausalLM`" not in text
    assert "`InternLM3ForCausalLM`" not in text  # the same class in vLLM
    assert "`WhisperForConditionalGeneration`" in text


@pytest.mark.envs
def test_the_registry_is_that_of_vllm(environment):
    python = environment("vllm-0.32.0").python
    assert json.loads(REGISTRY.read_text()) == read_registry(str(python))
