"""Requests that mean harm, or no good, against a real server that allows paths."""

from __future__ import annotations

import http.client
import json
import math
import os
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from e2e_values import LAYER_IDS, assert_exact, random_prompts, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Server, load, python_of, serve

ALLOWED = "--kv-transfer-config.kv_connector_extra_config.allow_custom_save_path"


@dataclass
class Attacked:
    server: Server
    prompt: list[int]
    expected: Any
    answers: dict[int, int] = field(default_factory=dict)  # how many of each status

    def send(self, body: bytes, headers: dict[str, str], path: str) -> tuple[int, Any]:
        """Status and JSON of an answer, or its text."""
        netloc = urllib.parse.urlsplit(self.server.url).netloc
        connection = http.client.HTTPConnection(netloc, timeout=60)
        try:
            connection.putrequest("POST", path)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                **headers,
            }.items():
                connection.putheader(name, value.encode("latin-1"))
            connection.endheaders(body)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        self.answers[answer.status] = self.answers.get(answer.status, 0) + 1
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def ask(
        self, body: dict[str, Any], path: str = "/v1/completions", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """Status and ``kv_transfer_params`` of the answer."""
        asked = {"model": str(self.server.model), "max_tokens": 1, **body}
        asked.setdefault("prompt", self.prompt)
        status, answer = self.send(json.dumps(asked).encode(), headers, path)
        told = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
        return status, told or {}

    def assert_sane(self) -> None:
        """A request that means well gets its file, and the file is right."""
        told = self.server.complete(self.prompt)
        loaded = load(told["hidden_states_path"])
        assert loaded["token_ids"].tolist() == self.prompt
        assert_exact(loaded["hidden_states"], self.expected)


@pytest.fixture(scope="module")
def attacked(tiny, tmp_path_factory) -> Iterator[Attacked]:
    model = tiny("llama")
    folder = tmp_path_factory.mktemp("attacked")
    prompt = random_prompts(1, low=20, high=21)[0]
    command = [
        *(python_of("vllm-0.32.0"), "-m", "specshim.launch_vllm", str(model)),
        *("--hidden-states-path", str(folder / "hs")),
        *("--target-layer-ids", *map(str, LAYER_IDS[:-1])),
        *("--", "--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
        *("--max-num-seqs", "8", ALLOWED, "true"),
    ]
    expected = reference(model, [prompt])[0]
    with serve(command, model, folder) as server:
        before = sorted(os.listdir(folder))
        case = Attacked(server, prompt, expected)
        case.assert_sane()
        yield case
        case.assert_sane()
        assert sorted(os.listdir(folder)) == sorted({*before, "hs"})
        # vLLM's front end has tracebacks of its own for what it cannot encode.
        log = server.log.read_text(errors="replace")
        ours = [x for x in log.splitlines() if 'File "' in x and "/specshim/" in x]
        assert ours == []
        assert "Logging error" not in log and "EngineDeadError" not in log


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"hidden_states_path": 1}, "must be a file path"),
        ({"hidden_states_path": ["a"]}, "must be a file path"),
        ({"hidden_states_path": "a\0b"}, "cannot be printed"),
        ({"hidden_states_path": "../../a"}, "must lie below the storage path"),
        ({"hidden_states_path": "/etc/passwd"}, "must lie below the storage path"),
        ({"hidden_states_path": "out/a"}, "must lie below the storage path"),
        ({"hidden_states_path": "d/" * 3000 + "a"}, "longer than 1000 bytes"),
        ({"hidden_states_path": "a" * 300}, "more than 247 bytes"),
        ({"hidden_states_path": "x/a.Lock"}, "files of its own"),
        ({"include_output_tokens": "no"}, "must be true or false"),
        ({"include_output_tokens": {"a": 1}}, "must be true or false"),
    ],
)
def test_a_wrong_value_gets_one_sentence(attacked, parameters, sentence):
    storage = attacked.server.storage
    if not (storage / "out").is_symlink():
        (storage / "out").symlink_to(storage.parent)
    before = attacked.server.leftovers()
    status, told = attacked.ask({"kv_transfer_params": parameters})
    assert status == 200
    assert sentence in told["hidden_states_error"]
    assert not Path(told.get("hidden_states_path", "")).is_file()
    assert attacked.server.leftovers() == before


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"do_remote_prefill": True},
        {"do_remote_prefill": "x", "remote_prefill_cached_tokens": "y"},
        {"do_remote_decode": True, "remote_engine_id": "x", "remote_block_ids": [1]},
        {"a": [1] * 100_000},
        nested(60),
        {"a": math.nan},
        {"hidden_states_path": "x/y/zü.safetensors"},
        {"hidden_states_path": None, "include_output_tokens": None},
    ],
)
def test_what_is_not_for_us_is_left_alone(attacked, parameters):
    status, told = attacked.ask({"kv_transfer_params": parameters})
    assert status == 200
    path = told["hidden_states_path"]
    assert Path(path).resolve().is_relative_to(attacked.server.storage)
    assert_exact(load(path)["hidden_states"], attacked.expected)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "name",
    ["", "..", "../../x", "a" * 8000, "\xe9\xff\x80", "9" * 6000 + "_x", "1_cmpl-x-0"],
)
def test_a_header_does_not_choose_where_files_go(attacked, path, name):
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "w1 w2"}]}
    if path == "/v1/completions":
        body = {"prompt": attacked.prompt}
    status, told = attacked.ask(body, path, **{"X-Request-Id": name})
    assert status == 200
    file = Path(told["hidden_states_path"])
    assert file.parent == attacked.server.storage and file.name.isascii()
    loaded = load(str(file))
    if path == "/v1/completions":
        assert_exact(loaded["hidden_states"], attacked.expected)


def test_requests_of_one_header_at_once_get_files_of_their_own(attacked):
    prompts = random_prompts(8, seed=3, high=60)
    expected = reference(attacked.server.model, prompts)
    answers = attacked.server.complete_all(
        prompts, 8, n=2, temperature=1, request_id="mine"
    )
    paths = [answer["hidden_states_path"] for answer in answers]
    assert len(set(paths)) == len(prompts)
    for path, states in zip(paths, expected, strict=True):
        assert_exact(load(path)["hidden_states"], states)


TEXT = st.text(max_size=30) | st.sampled_from(
    ["..", "/", "\0", "\ud800", "a\udcffb", "x" * 3000, "a/" * 1500, "x.lock", "\n"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = """hidden_states_path include_output_tokens do_remote_prefill do_remote_decode
    remote_block_ids remote_engine_id remote_prefill_cached_tokens prompt_token_ids"""
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "kv_transfer_params": JSON
        | st.dictionaries(st.sampled_from(KEYS.split()), JSON, max_size=4),
        "request_id": TEXT | JSON,
        "vllm_xargs": st.dictionaries(
            st.sampled_from(["kv_transfer_params", "x"]), JSON, max_size=2
        ),
        "n": st.sampled_from([1, 2, 3]),
        "temperature": st.sampled_from([0, 1]),
        "stream": st.booleans(),
        "max_tokens": st.sampled_from([0, 1, 3, -1, 10**9]),
        "prompt": st.sampled_from(
            ["w1 w2", [[5, 6], [7, 8, 9]], [5, 6, 7], [], [10**12], [5] * 600, ["w1"]]
        ),
        "echo": st.booleans(),
        "add_special_tokens": JSON,
        "cache_salt": TEXT,
        "priority": st.integers(-5, 5),
    },
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={"X-Request-Id": st.text(st.characters(max_codepoint=255), max_size=40)},
).map(lambda found: {k: v.translate(_ENDS) for k, v in found.items()})
_ENDS = {ord(c): "_" for c in "\r\n\0"}


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    BODIES,
    HEADERS,
    st.sampled_from(["/v1/completions"] * 3 + ["/v1/chat/completions"]),
)
def test_no_request_ends_the_engine_or_writes_elsewhere(attacked, body, headers, path):
    if path != "/v1/completions":
        body = {"messages": [{"role": "user", "content": "w1 w2"}], **body}
        body.pop("prompt", None)
    status, told = attacked.ask(body, path, **headers)
    assert status < 600
    if "hidden_states_error" in told:
        reason = told["hidden_states_error"]
        assert reason.isascii() and reason.isprintable() and len(reason) < 500
        assert not os.path.exists(told.get("hidden_states_path", ""))
    elif told:
        file = told["hidden_states_path"]
        assert Path(file).resolve().is_relative_to(attacked.server.storage)
        assert load(file)["hidden_states"].isfinite().all()


def test_the_fuzz_reached_the_engine(attacked):
    """Last in this module: most of it was answered, not turned away at the door."""
    if not attacked.answers:
        pytest.skip("nothing was sent")
    assert attacked.answers.get(200, 0) > sum(attacked.answers.values()) / 4
