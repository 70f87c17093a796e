"""Requests of every kind against one small KV cache: all right, preempted or not."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from safetensors.torch import load_file, save_file
from serving import Server, load, python_of, serve

pytestmark = pytest.mark.extended

LONGEST = 512
RANK, ALPHA = 4, 8


def make_adapter(model: Path, adapter: Path, merged: Path) -> None:
    """A LoRA of the attention's projections, and the model with it in its weights."""
    weights = load_file(model / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    parts: dict[str, Any] = {}
    for name, weight in list(weights.items()):
        if not name.endswith(("q_proj.weight", "v_proj.weight", "o_proj.weight")):
            continue
        down = torch.randn(RANK, weight.shape[1], generator=generator) * 0.05
        up = torch.randn(weight.shape[0], RANK, generator=generator) * 0.05
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        parts[f"{stem}.lora_A.weight"], parts[f"{stem}.lora_B.weight"] = down, up
        changed = weight.float() + ALPHA / RANK * up @ down
        weights[name] = changed.to(weight.dtype)
    shutil.copytree(model, merged)
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    adapter.mkdir()
    save_file(parts, adapter / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["q_proj", "v_proj", "o_proj"],
        "bias": "none",
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))


@dataclass(frozen=True)
class Crowded:
    server: Server
    merged: Path


@pytest.fixture(scope="module", params=["--async-scheduling", "--no-async-scheduling"])
def crowded(request, tiny, tmp_path_factory) -> Iterator[Crowded]:
    """Priority scheduling; blocks for some 40 of the 256 requests that may run."""
    model, folder = tiny("llama"), tmp_path_factory.mktemp("crowded")
    make_adapter(model, folder / "adapter", folder / "merged")
    command = [
        *(python_of("vllm-0.32.0"), "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(folder / "hs")),
        *("--target-layer-ids", *map(str, LAYER_IDS[:-1])),
        *("--", "--dtype", "float32", "--max-model-len", str(LONGEST)),
        *("--max-num-batched-tokens", "512", "--max-num-seqs", "256"),
        *("--enforce-eager", "--scheduling-policy", "priority"),
        *("--num-gpu-blocks-override", "80", request.param),
        # vLLM's kernels for the CPU give requests without an adapter the last slot's
        # (its index is -1): that one stays empty here.
        *("--enable-lora", "--max-loras", "2"),
        *("--lora-modules", f"adapter={folder / 'adapter'}"),
    ]
    with serve(command, model, folder) as server:
        yield Crowded(server, folder / "merged")


def ask(server: Server, prompt: list[int], **body: Any) -> Any:
    return load(server.complete(prompt, **body)["hidden_states_path"])["hidden_states"]


def test_256_requests_at_once_with_priorities(crowded):
    prompts = random_prompts(256, seed=9, high=400)
    source = random.Random(9)
    sent = [(p, source.randrange(-5, 5), source.randrange(1, 30)) for p in prompts]

    def one(job: tuple[list[int], int, int]) -> Any:
        prompt, priority, tokens = job
        more = {"priority": priority, "max_tokens": tokens, "ignore_eos": True}
        return ask(crowded.server, prompt, **more)

    with ThreadPoolExecutor(256) as pool:
        found = list(pool.map(one, sent))
    expected = reference(crowded.server.model, prompts)
    for states, right in zip(found, expected, strict=True):
        assert_exact(states, right)


@pytest.mark.parametrize("length", [1, LONGEST - 1])
def test_the_shortest_and_the_longest_prompt(crowded, length):
    prompt = random_prompts(1, seed=length, low=length, high=length + 1)[0]
    states = ask(crowded.server, prompt)
    assert_exact(states, reference(crowded.server.model, [prompt])[0])


def test_several_choices(crowded):
    prompt = random_prompts(1, seed=2, low=90, high=99)[0]
    more = {"n": 4, "temperature": 1, "max_tokens": 5}
    states = ask(crowded.server, prompt, **more)
    assert_exact(states, reference(crowded.server.model, [prompt])[0])


def test_requests_with_an_adapter_beside_others(crowded):
    prompts = random_prompts(16, seed=5)
    models = [*["adapter", str(crowded.server.model)] * 8]

    def one(job: tuple[list[int], str]) -> Any:
        return ask(crowded.server, job[0], model=job[1])

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, zip(prompts, models, strict=True)))
    plain = reference(crowded.server.model, prompts)
    adapted = reference(crowded.merged, prompts)
    for index, states in enumerate(found):
        assert_exact(states, (plain if index % 2 else adapted)[index])
    assert not torch.allclose(plain[0], adapted[0], rtol=0.01)
