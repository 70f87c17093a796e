"""Nobody calls our launcher: the plugin reroutes a stock command line to the tap."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS
from serving import python_of, serve, stock_arguments

API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")


@pytest.mark.parametrize(
    ("release", "architecture", "options"),
    [
        ("0.20.1", "llama", ["--dtype", "float32"]),  # compiled
        pytest.param(
            *("0.24.0", "gemma3", ["--dtype", "float32", "--enforce-eager"]),
            marks=pytest.mark.extended,  # test_releases asks its neighbours the same
        ),
        # Gated DeltaNet: bfloat16 only on the CPU.
        ("0.32.0", "qwen3_5", ["--dtype", "bfloat16"]),
    ],
)
def test_a_stock_command_line(release, architecture, options, tiny, tmp_path):
    python = python_of(f"vllm-{release}")
    model = tiny(architecture)
    stock = stock_arguments(model, tmp_path / "hs", LAYER_IDS)
    command = [python, *API_SERVER, *stock, "--max-model-len", "512", *options]
    with serve(command, model, tmp_path) as server:
        verify = [
            *(sys.executable, "-m", "specshim", "verify", "--prompts", "8"),
            *("--url", server.url, "--model", str(model)),
        ]
        done = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.leftovers() == []
    said = re.findall(r"INFO.*specshim rerouted", server.log.read_text())
    assert len(said) == 1
