"""Detection against vLLM itself: which cache each layer of a tiny model asks for.

Runs where SPECSHIM_TEST_VLLM_PYTHON names the python of a vLLM environment. vLLM
inspects each architecture in a process of its own, so the first run takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vllm_layer_specs import FAMILIES

from specshim.detect import detect_model, kinds

PYTHON = os.environ.get("SPECSHIM_TEST_VLLM_PYTHON")
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        not PYTHON, reason="SPECSHIM_TEST_VLLM_PYTHON names no vLLM environment"
    ),
]

# Ours: vLLM's spec class, or the attention backend that a state spec names.
SPECS: Mapping[str, str] = {
    kinds.FULL: "FullAttentionSpec",
    kinds.SLIDING: "SlidingWindowSpec",
    kinds.CHUNKED: "ChunkedLocalAttentionSpec",
    kinds.MLA: "MLAAttentionSpec",
    kinds.GDN: "GDNAttentionBackend",
    kinds.MAMBA1: "Mamba1AttentionBackend",
    kinds.MAMBA2: "Mamba2AttentionBackend",
    kinds.SHORT_CONV: "ShortConvAttentionBackend",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny") / "models"


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Any]:
    assert PYTHON
    done = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("vllm_layer_specs.py")), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS")]
    assert lines, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWERS"))
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_each_layer_has_the_cache_that_vllm_gives_it(
    name: str, folder: Path, answers: dict[str, Any]
) -> None:
    theirs = answers[name]
    if "error" in theirs:
        pytest.skip(theirs["error"])
    facts = detect_model(str(folder / name))
    ours = {
        str(index): sorted(SPECS[part] for part in kinds.parts(kind))
        for index, kind in enumerate(facts.layer_kinds)
        if kind not in (kinds.MLP, kinds.MOE)
    }
    counts = Counter(spec for specs in ours.values() for spec in specs)
    assert counts == theirs["counts"]
    if sum(map(len, theirs["layers"].values())) == counts.total():
        assert ours == theirs["layers"]  # Zamba2, Falcon-H1: names without layers.N
    assert facts.known
    assert facts.hybrid == (len(counts) > 1)
    has_state = any(spec.endswith("Backend") for spec in counts)
    assert theirs["is_hybrid"] == (facts.hybrid and has_state)
    assert theirs["is_attention_free"] == facts.summary.startswith("pure")
    assert theirs["use_mla"] == (kinds.MLA in facts.layer_kinds)


def test_most_families_were_answered(answers: dict[str, Any]) -> None:
    assert sum("error" not in said for said in answers.values()) > len(FAMILIES) / 2


def test_the_environment_is_found_and_has_every_hook() -> None:
    assert PYTHON
    code = (
        "from specshim.detect import detect_environment as d; e = d(); "
        "print(e.vllm, e.vllm_path, *e.missing_tap_hooks)"
    )
    ours = subprocess.run(
        [PYTHON, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    code = "import vllm, os; print(vllm.__version__, os.path.dirname(vllm.__file__))"
    theirs = subprocess.run(
        [PYTHON, "-c", code], capture_output=True, text=True, check=True
    )
    assert ours.stdout.split() == theirs.stdout.split()[-2:]
