"""Pipeline parallelism: each stage records its layers, the reader gets one file."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import signal
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from e2e_values import assert_exact, random_prompts, reference
from serving import Server, load, python_of, run_offline, serve
from stock_request import stock_request

EVERY = (*range(9), 4, 2)  # of 8 layers in stages of 4; two of them twice
OTHERS = pytest.mark.extended
CASES = (
    ("0.32.0", "gemma3"),
    pytest.param(("0.32.0", "llama"), marks=OTHERS),
    pytest.param(("0.24.0", "gemma3"), marks=OTHERS),
    pytest.param(("0.20.1", "llama"), marks=OTHERS),
)
NAMED = {"allow_custom_save_path": True}
TWO_CORES = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # a worker takes the part of its rank


@dataclass(frozen=True)
class Piped:
    server: Server
    prompts: list[list[int]]
    expected: list[Any]


@contextmanager
def piped_server(case: tuple[str, str], model: Path, folder: Path) -> Iterator[Server]:
    release, _ = case
    command = [
        *(python_of(f"vllm-{release}"), "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(folder / "hs"), "--no-include-last-layer"),
        *("--target-layer-ids", *map(str, EVERY)),
        *("--", "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
        *("--max-num-batched-tokens", "64", "--max-num-seqs", "8", "-pp", "2"),
        *("--kv-transfer-config", json.dumps({"kv_connector_extra_config": NAMED})),
    ]
    with serve(command, model, folder, **TWO_CORES) as server:
        yield server


@pytest.fixture(scope="module", params=CASES, ids=str)
def piped(request, tiny, tmp_path_factory) -> Iterator[Piped]:
    """A server of two stages; a prompt is cut into chunks of 64 tokens."""
    model = tiny(request.param[1])
    prompts = random_prompts(24)
    expected = reference(model, prompts, EVERY)
    folder = tmp_path_factory.mktemp("piped")
    with piped_server(request.param, model, folder) as server:
        yield Piped(server, prompts, expected)


def left_after(server: Server, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while server.leftovers() and time.monotonic() < deadline:
        time.sleep(0.1)
    return server.leftovers()


def test_every_layer_is_right_with_several_batches_in_flight(piped):
    answers = piped.server.complete_all(piped.prompts, 12)
    for answer, prompt, expected in zip(
        answers, piped.prompts, piped.expected, strict=True
    ):
        loaded = load(answer["hidden_states_path"])
        assert loaded["token_ids"].tolist() == prompt
        assert_exact(loaded["hidden_states"], expected)
    assert left_after(piped.server, 10) == []


def test_output_tokens_of_all_stages(piped):
    prompts = piped.prompts[:8]
    answers, whole = piped.server.complete_with_output(prompts)
    expected = reference(piped.server.model, whole, EVERY)
    for answer, ids, states in zip(answers, whole, expected, strict=True):
        loaded = load(answer["hidden_states_path"])
        assert loaded["token_ids"].tolist() == ids
        assert_exact(loaded["hidden_states"], states)


def test_clients_that_go_away_leave_nothing(piped):
    server = piped.server
    body = {"prompt": piped.prompts[0], "max_tokens": 400, "ignore_eos": True}
    data = json.dumps({"model": str(server.model), **body})
    for seconds in (0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15):
        connection = http.client.HTTPConnection(
            urllib.parse.urlsplit(server.url).netloc
        )
        connection.request(
            "POST", "/v1/completions", data, {"Content-Type": "application/json"}
        )
        time.sleep(seconds)
        connection.close()
    for prompt, expected in zip(piped.prompts[:4], piped.expected, strict=False):
        path = server.complete(prompt)["hidden_states_path"]
        assert_exact(load(path)["hidden_states"], expected)
    left = left_after(server, 3)
    for name in left:  # answered before its client was gone: it was told of a whole one
        if name.endswith(".safetensors"):
            states = load(str(server.storage / name))["hidden_states"]
            assert_exact(states, piped.expected[0])
    assert left_after(server, 1) == []


def test_what_the_last_stage_refuses_is_told_and_the_others_leave_nothing(piped):
    server = piped.server
    server.storage.mkdir(exist_ok=True)
    asked = {"hidden_states_path": "a.safetensors"}
    lock = server.storage / "a.safetensors.lock"
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = server.complete(piped.prompts[1], kv_transfer_params=asked)
    assert "locked by another process" in answer["hidden_states_error"]
    lock.unlink()
    assert left_after(server, 10) == []
    answer = server.complete(piped.prompts[1], kv_transfer_params=asked)
    states = load(answer["hidden_states_path"])["hidden_states"]
    assert_exact(states, piped.expected[1])


@pytest.mark.extended
@pytest.mark.parametrize("stage", ["PP0", "PP1"])
def test_a_stage_that_is_killed_leaves_no_half_file_and_the_rest_is_swept(
    stage, tiny, tmp_path
):
    model = tiny("llama")
    prompts = random_prompts(6, seed=4)
    case = ("0.32.0", "llama")
    with piped_server(case, model, tmp_path) as server:
        expected = reference(model, prompts, EVERY)
        path = server.complete(prompts[0])["hidden_states_path"]
        assert_exact(load(path)["hidden_states"], expected[0])
        body = {
            "prompt": prompts[1],
            "max_tokens": 300,
            "ignore_eos": True,
            "kv_transfer_params": {"include_output_tokens": True},
        }
        data = json.dumps({"model": str(model), **body})
        address = urllib.parse.urlsplit(server.url).netloc
        connection = http.client.HTTPConnection(address)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", data, headers)
        deadline = time.monotonic() + 20
        while not any(n.endswith(".partial") for n in server.leftovers()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = re.search(rf"Worker_{stage} pid=(\d+)", server.log.read_text())
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        with pytest.raises((OSError, http.client.HTTPException, AssertionError)):
            assert connection.getresponse().status == 200
    assert not any(n.endswith(".safetensors") for n in server.leftovers())
    for name in server.leftovers():
        if name.endswith(".lock"):
            os.utime(server.storage / name, (0, 0))
    with piped_server(case, model, tmp_path) as again:
        assert again.leftovers() == []
        path = again.complete(prompts[2])["hidden_states_path"]
        assert_exact(load(path)["hidden_states"], expected[2])


@pytest.mark.extended
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize(
    ("layer_ids", "extra"),
    [
        ((1, 2), {}),  # the first stage alone
        ((5, 8), {}),  # the last one alone
        ((4,), {}),  # what one stage sends to the next
        ((0, 4, 8), {"sync": True}),
    ],
    ids=str,
)
def test_stages_that_own_few_layers_or_none(
    layer_ids, extra, asynchronous, tiny, tmp_path
):
    model, prompts = tiny("llama"), random_prompts(8, seed=3)
    configs = stock_request(tmp_path / "hs", layer_ids)
    configs["kv_transfer_config"]["kv_connector_extra_config"].update(extra)
    args = {
        "model": str(model),
        "dtype": "float32",
        "max_model_len": 512,
        **configs,
        "pipeline_parallel_size": 2,
        "enforce_eager": True,
        "max_num_batched_tokens": 64,
        "async_scheduling": asynchronous,
    }
    calls = [{"prompts": prompts, "sampling": {"max_tokens": 3}}]
    (answers,) = run_offline(python_of("vllm-0.32.0"), args, calls, **TWO_CORES)
    expected = reference(model, prompts, layer_ids)
    for answer, states in zip(answers, expected, strict=True):
        assert_exact(load(answer["hidden_states_path"])["hidden_states"], states)
