"""The main job: launch, ask as the clients do, compare with transformers."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from safetensors import safe_open
from safetensors.torch import load_file
from serving import Server, load, python_of, serve

CASES = {
    # Sliding-window hybrids: stock extraction starts on none of them.
    "0.20.1": ("gemma3", ["--enforce-eager"]),
    "0.24.0": ("gemma3", []),  # compiled
    "0.32.0": ("gemma4", []),
}


@dataclass(frozen=True)
class Tapped:
    release: str
    server: Server
    prompts: list[list[int]]
    expected: list[Any]


@pytest.fixture(scope="module", params=CASES)
def tapped(request, tiny, tmp_path_factory) -> Iterator[Tapped]:
    """A server per release; a prompt is cut into chunks of 64 tokens."""
    architecture, options = CASES[request.param]
    python = python_of(f"vllm-{request.param}")
    model = tiny(architecture)
    folder = tmp_path_factory.mktemp(f"launcher-{request.param}")
    prompts = random_prompts(24)
    expected = reference(model, prompts)
    command = [
        *(python, "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(folder / "hs")),
        *("--target-layer-ids", *map(str, LAYER_IDS[:-1])),
        *("--", "--dtype", "float32", "--max-model-len", "512"),
        *("--max-num-batched-tokens", "64", "--max-num-seqs", "8", *options),
    ]
    cache = str(folder / "cache")
    with serve(command, model, folder, VLLM_CACHE_ROOT=cache) as server:
        yield Tapped(request.param, server, prompts, expected)


@pytest.fixture(autouse=True)
def nothing_left(tapped) -> Iterator[None]:
    yield
    deadline = time.monotonic() + 10
    while tapped.server.leftovers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tapped.server.leftovers() == []


def test_the_client_of_speculators_0_9_gets_the_reference(tapped):
    openai = pytest.importorskip("openai")
    client_module = pytest.importorskip("speculators.data_generation.vllm_client")
    client = openai.Client(base_url=f"{tapped.server.url}/v1", api_key="none")
    for prompt, expected in zip(tapped.prompts[:6], tapped.expected, strict=False):
        handle, _ = client_module.generate_hidden_states(
            client, str(tapped.server.model), {"input_ids": prompt}
        )
        loaded = load(handle)
        assert loaded["token_ids"].tolist() == prompt
        assert_exact(loaded["hidden_states"], expected)


def test_the_client_of_speculators_0_6_gets_the_reference(tapped):
    script = Path(__file__).with_name("client_of_speculators.py")
    job = {
        "url": f"{tapped.server.url}/v1",
        "model": str(tapped.server.model),
        "prompts": tapped.prompts[:3],
    }
    done = subprocess.run(
        [python_of("speculators-0.6.0"), str(script)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for path, expected in zip(
        done.stdout.splitlines()[-3:], tapped.expected, strict=False
    ):
        assert_exact(load(path)["hidden_states"], expected)


def test_many_requests_at_once_with_chunked_prefill(tapped):
    answers = tapped.server.complete_all(tapped.prompts, 12)
    for answer, prompt, expected in zip(
        answers, tapped.prompts, tapped.expected, strict=True
    ):
        loaded = load(answer["hidden_states_path"])
        assert loaded["token_ids"].tolist() == prompt
        assert_exact(loaded["hidden_states"], expected)


def test_the_file_says_what_it_is(tapped):
    path = tapped.server.complete(tapped.prompts[0])["hidden_states_path"]
    load_file(wait(path))
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    load(path)
    assert json.loads(metadata["layer_ids"]) == list(LAYER_IDS)
    assert metadata["model"] == str(tapped.server.model)
    assert metadata["vllm"] == tapped.release
    assert metadata["route"] == "tap"


def wait(path: str) -> str:
    deadline = time.monotonic() + 10
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path


def test_output_tokens_are_included_when_asked_for(tapped):
    prompts = tapped.prompts[:8]
    answers, whole = tapped.server.complete_with_output(prompts)
    expected = reference(tapped.server.model, whole)
    for answer, ids, states in zip(answers, whole, expected, strict=True):
        loaded = load(answer["hidden_states_path"])
        assert loaded["token_ids"].tolist() == ids
        assert_exact(loaded["hidden_states"], states)


def test_several_output_tokens_without_asking_leave_the_prompts_rows(tapped):
    answer = tapped.server.complete(tapped.prompts[1], max_tokens=8, ignore_eos=True)
    loaded = load(answer["hidden_states_path"])
    assert loaded["token_ids"].tolist() == tapped.prompts[1]
    assert_exact(loaded["hidden_states"], tapped.expected[1])


def test_chat_requests(tapped):
    body = {
        "messages": [{"role": "user", "content": "w1 w2 w3 w4"}],
        "max_tokens": 1,
        "return_token_ids": True,
    }
    answer = tapped.server.post("/v1/chat/completions", body)
    ids = answer["prompt_token_ids"]
    loaded = load(answer["kv_transfer_params"]["hidden_states_path"])
    assert loaded["token_ids"].tolist() == ids
    assert_exact(loaded["hidden_states"], reference(tapped.server.model, [ids])[0])


def test_a_call_that_becomes_several_requests_leaves_the_file_it_names(tapped):
    prompts = tapped.prompts[:3]
    body = {"prompt": prompts, "max_tokens": 1}
    answer = tapped.server.post("/v1/completions", body)
    path = answer["kv_transfer_params"]["hidden_states_path"]
    assert_exact(load(path)["hidden_states"], tapped.expected[0])
    path = tapped.server.complete(prompts[1], n=3, temperature=1)["hidden_states_path"]
    assert_exact(load(path)["hidden_states"], tapped.expected[1])


def test_a_streamed_answer_leaves_no_file(tapped):
    body = {"prompt": tapped.prompts[0], "max_tokens": 2, "stream": True}
    data = json.dumps({"model": str(tapped.server.model), **body}).encode()
    request = urllib.request.Request(
        f"{tapped.server.url}/v1/completions",
        data,
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert b"[DONE]" in response.read()


@pytest.mark.parametrize(
    "name", ["../../../escape", "/tmp/escape", "a" * 300, "%2e%2e"]
)
def test_a_request_id_does_not_choose_where_files_go(tapped, name):
    answer = tapped.server.post(
        "/v1/completions",
        {"prompt": tapped.prompts[2], "max_tokens": 1},
        **{"X-Request-Id": name},
    )
    path = Path(answer["kv_transfer_params"]["hidden_states_path"])
    assert path.parent == tapped.server.storage
    assert_exact(load(str(path))["hidden_states"], tapped.expected[2])


def test_a_path_that_the_client_names_is_refused_with_a_reason(tapped):
    answer = tapped.server.complete(
        tapped.prompts[0], kv_transfer_params={"hidden_states_path": "/tmp/x"}
    )
    assert "allow_custom_save_path" in answer["hidden_states_error"]
    assert answer["hidden_states_path"].startswith("/dev/null/no hidden states: ")


def test_clients_that_go_away_leave_nothing_and_the_server_lives(tapped):
    server = tapped.server
    body = {"prompt": tapped.prompts[0], "max_tokens": 400, "ignore_eos": True}
    data = json.dumps({"model": str(server.model), **body})
    ports = []
    for seconds in (0, 0.002, 0.005, 0.01, 0.02, 0.04):
        connection = http.client.HTTPConnection(
            urllib.parse.urlsplit(server.url).netloc
        )
        connection.request(
            "POST", "/v1/completions", data, {"Content-Type": "application/json"}
        )
        ports.append(connection.sock.getsockname()[1])
        time.sleep(seconds)
        connection.close()
    answer = server.complete(tapped.prompts[0])
    assert_exact(
        load(answer["hidden_states_path"])["hidden_states"], tapped.expected[0]
    )
    # A tiny model may have answered before its client was gone: that file was told of.
    time.sleep(1)
    log = server.log.read_text()
    answered = [port for port in ports if f':{port} - "POST' in log]
    left = [path for path in server.storage.iterdir() if path.suffix == ".safetensors"]
    assert len(left) <= len(answered)
    for path in left:
        load(str(path))
    if len(answered) == len(ports):
        pytest.skip("the engine answered every client before it was gone")


def test_specshim_verify_says_right(tapped):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "specshim", "verify", "--json", "--prompts", "6"),
            *("--url", tapped.server.url, "--model", str(tapped.server.model)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["status"] == "right"
