"""The cache route on the CPU: stock extraction, patched, gives transformers' values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from serving import Server, load, python_of, serve, stock_arguments

API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")
CASES = [
    ("0.20.1", "llama", ["--enforce-eager"]),
    ("0.24.0", "llama", ["--enforce-eager"]),
    ("0.32.0", "llama", []),  # compiled
    ("0.32.0", "gemma3", ["--enforce-eager"]),  # returns no states of its layers
]
PROMPTS = random_prompts(8)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case[:2]))
def stock(request, tiny, tmp_path_factory) -> Iterator[Server]:
    release, architecture, more = request.param
    python, model = python_of(f"vllm-{release}"), tiny(architecture)
    folder = tmp_path_factory.mktemp(f"cache-route-{release}-{architecture}")
    arguments = stock_arguments(model, folder / "hs", LAYER_IDS)
    options = ["--dtype", "float32", "--max-model-len", "512", *more]
    variables = {"SPECSHIM_ROUTE": "cache", "VLLM_CACHE_ROOT": str(folder / "cache")}
    with serve(
        [python, *API_SERVER, *arguments, *options], model, folder, **variables
    ) as server:
        yield server


@pytest.fixture(scope="module")
def expected(stock) -> list:
    return reference(stock.model, PROMPTS)


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 1},
        {"max_tokens": 6, "ignore_eos": True},
        {"max_tokens": 4, "ignore_eos": True, "temperature": 0.8, "top_p": 0.9},
    ],
    ids=["prompt", "greedy", "sampled"],
)
def test_requests_at_once(stock, expected, body):
    answers = stock.complete_all(PROMPTS, len(PROMPTS), **body)
    for answer, prompt, states in zip(answers, PROMPTS, expected, strict=True):
        loaded = load(answer["hidden_states_path"])
        assert loaded["token_ids"].tolist() == prompt
        assert_exact(loaded["hidden_states"], states)
        tokens = answer["answer"]["usage"]["completion_tokens"]
        assert tokens == body["max_tokens"]


def test_the_plan_does_not_warn_of_the_cpu(stock):
    assert "specshim kept the cache route" in stock.log.read_text()
    assert "on the CPU" not in stock.log.read_text()
