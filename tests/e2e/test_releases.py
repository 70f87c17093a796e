"""The tap on one release of each minor: a sliding-window hybrid, asked as stock is.

In every run those at which something changes and that no other test serves with; the
others are `extended`.
"""

from __future__ import annotations

import pytest
from compat import each_run

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from serving import load, python_of, serve, stock_arguments

# The oldest; model runner V2 by default on the GPU; its need of a newer torch there.
BREAKPOINTS = ("0.17.1", "0.26.0", "0.29.0")
# These ask for faster libraries by name alone; the loader passes over absent ones.
PRELOADED = {"LD_PRELOAD": "libtcmalloc.so libiomp5.so"}
NEEDED = {"0.18.1": PRELOADED, "0.19.1": PRELOADED}


@pytest.mark.parametrize("release", each_run("vllm", BREAKPOINTS))
def test_states_are_right(tiny, release, tmp_path):
    model = tiny("gemma3")
    prompts = random_prompts(12)
    command = [
        *(python_of(f"vllm-{release}"), "-m", "vllm.entrypoints.openai.api_server"),
        *stock_arguments(model, tmp_path / "hs", LAYER_IDS),
        *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
        *("--max-num-batched-tokens", "64", "--max-num-seqs", "8"),  # chunks
    ]
    with serve(command, model, tmp_path, **NEEDED.get(release, {})) as server:
        answers = server.complete_all(prompts, 6)
        assert "specshim rerouted hidden-state extraction" in server.log.read_text()
        for prompt, answer, expected in zip(
            prompts, answers, reference(model, prompts), strict=True
        ):
            loaded = load(answer["hidden_states_path"])
            assert loaded["token_ids"].tolist() == prompt
            assert_exact(loaded["hidden_states"], expected)
        assert server.leftovers() == []
