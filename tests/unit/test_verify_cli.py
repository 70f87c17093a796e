"""The whole of ``specshim verify`` against a server that delivers what a test says."""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from standin import LAYER_IDS, StandIn, serving, tiny

from specshim import verify
from specshim.verification.collect import wait_for_file

IDS = {"layer_ids": json.dumps(LAYER_IDS)}
METADATA = {**IDS, "vllm": "0.32.0", "route": "tap"}


@pytest.fixture
def standin(tmp_path: Path) -> StandIn:
    return StandIn(tiny("llama"), tmp_path, metadata=METADATA)


def run(url: str, *arguments: str, model: str | None = None) -> int:
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    given = [
        "--url",
        url,
        "--model",
        model or tiny("llama"),
        "--prompts",
        "3",
        "--max-length",
        "20",
    ]
    return verify.run(parser.parse_args([*given, *arguments]))


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_right_server(standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(standin):
        assert run(standin.url) == 0
    text = capsys.readouterr().out
    for line in (
        "Served as: tiny",
        "File says route: tap",
        "Layer ids: 0 2 4 5 8 (from the files)",
        "Prompts: 3 of 3 compared (seed 0)",
        "Token ids: 3 of 3 right",
        "Order: right",
        "Verdict: right",
    ):
        assert line in text.splitlines()
    assert list(standin.folder.iterdir()) == []


def test_requests_are_reproducible_plain_tokens_of_different_length(
    standin: StandIn,
) -> None:
    with serving(standin):
        assert run(standin.url, "--seed", "5") == 0
        assert run(f"{standin.url}/v1/", "--seed", "5", "--concurrency", "1") == 0
    prompts = [body["prompt"] for body in standin.requests]
    assert sorted(prompts[:3]) == sorted(prompts[3:])
    assert len({len(prompt) for prompt in prompts}) == 3
    assert max(len(prompt) for prompt in prompts) == 20
    assert all(0 <= token < 508 for prompt in prompts for token in prompt)
    assert {(b["model"], b["max_tokens"]) for b in standin.requests} == {("tiny", 1)}


def test_prompts_fit_the_server(standin: StandIn) -> None:
    with serving(standin):  # it says that it takes 64 tokens
        assert run(standin.url, "--max-length", "500", "--prompts", "1") == 0
    assert len(standin.requests[0]["prompt"]) == 63


def test_bfloat16_server(standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    standin.dtype = "bfloat16"
    with serving(standin):
        assert run(standin.url, "--json") == 0
    content = report(capsys)["comparison"]
    assert content["dtype"] == "bfloat16"
    for layer in content["layers"]:
        assert 0 < layer["limits"]["measured"] < layer["limits"]["right"] < 0.1
        assert layer["total"] == pytest.approx(layer["limits"]["measured"], rel=0.2)


def test_wrong_server(standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    def zeroed(number: int, states: torch.Tensor) -> torch.Tensor:
        if number == 1:
            states[-1, 2] = 0
        return states

    standin.corrupt = zeroed
    with serving(standin):
        assert run(standin.url) == 1
    text = capsys.readouterr().out
    assert "Found: Id 4: rows are zero (1 row in 1 sample" in text
    assert "Verdict: WRONG" in text


def test_json_holds_all_numbers(
    standin: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.corrupt = lambda number, states: states[:, [1, 0, 2, 3, 4]]
    with serving(standin):
        assert run(standin.url, "--json") == 1
    content = report(capsys)
    assert (content["status"], content["exit_code"]) == ("wrong", 1)
    assert content["layer_ids"] == list(LAYER_IDS)
    assert content["metadata"] == METADATA
    layers = content["comparison"]["layers"]
    assert [layer["nearest_layer"] for layer in layers] == [2, 0, 4, 5, 8]
    assert [layer["status"] for layer in layers] == ["wrong"] * 2 + ["right"] * 3
    assert "Layers are swapped: ids 0 and 2." in content["diagnosis"]


def test_a_report_page(
    standin: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def zeroed(number: int, states: torch.Tensor) -> torch.Tensor:
        states[0, 3] = 0
        return states

    standin.corrupt = zeroed
    path = tmp_path / "report.html"
    with serving(standin):
        assert run(standin.url, "--report", str(path)) == 1
    printed = capsys.readouterr()
    assert f"The report is {path}." in printed.err
    assert "Verdict: WRONG" in printed.out
    page = path.read_text()
    for said in ("WRONG", "Id 5: rows are zero (3 rows", "0.32.0"):
        assert said in page
    assert page.count("<title>token 0, id 5: 1.0e+00, zero (allowed") == 1


def test_wrong_token_ids(standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    standin.tokens = lambda prompt: [token + 1 for token in prompt]
    with serving(standin):
        assert run(standin.url) == 1
    text = capsys.readouterr().out
    assert "Token ids: 0 of 3 right" in text
    assert "token ids in the file are not those of the prompt (3 samples" in text


def test_waits_for_the_lock(standin: StandIn) -> None:
    standin.write_delay = 1.5
    start = time.monotonic()
    with serving(standin):
        assert run(standin.url) == 0
    assert time.monotonic() - start > 1.5
    assert list(standin.folder.iterdir()) == []


def test_keep(standin: StandIn) -> None:
    with serving(standin):
        assert run(standin.url, "--keep") == 0
    names = sorted(path.name for path in standin.folder.iterdir())
    assert names == [f"request-{number}.safetensors" for number in range(3)]


def test_could_not_tell_file_too_late(
    standin: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.write_delay = 4
    with serving(standin):
        assert run(standin.url, "--file-timeout", "0.3", "--json") == 2
        time.sleep(4)  # the writer's threads end before the folder goes
    content = report(capsys)
    assert "was not complete 0.3 s after its request was answered" in content["reason"]


def test_could_not_tell_no_file(
    standin: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.write = lambda number: number != 1
    with serving(standin):
        assert run(standin.url) == 2
    text = capsys.readouterr().out
    assert "without leaving a file" in text
    assert "Prompts: 2 of 3 compared" in text
    assert "Reason: 1 of 3 prompts gave no hidden states." in text


def test_a_wrong_sample_outweighs_a_missing_one(standin: StandIn) -> None:
    standin.write = lambda number: number != 1
    standin.corrupt = lambda number, states: states.roll(1, 0)
    with serving(standin):
        assert run(standin.url) == 1


def test_could_not_tell_server_error(
    standin: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.answer = lambda number: 500
    with serving(standin):
        assert run(standin.url) == 2
    text = capsys.readouterr().out
    assert "answered 500:" in text
    assert "the engine is dead" in text
    assert "Verdict: could not tell" in text


def test_could_not_tell_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("http://127.0.0.1:9") == 2
    assert "Reason: http://127.0.0.1:9/v1/models cannot be" in capsys.readouterr().out
    assert run("localhost:8000") == 2
    assert "is no http address" in capsys.readouterr().out


def test_could_not_tell_model(
    standin: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(standin):
        assert run(standin.url, model=str(tmp_path / "nothing")) == 2
    assert "There is no folder" in capsys.readouterr().out
    assert standin.requests == []


def test_layer_ids_from_the_command_line(
    standin: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.metadata = {}
    with serving(standin):
        assert run(standin.url) == 2
        assert "name them with --layer-ids" in capsys.readouterr().out
        assert run(standin.url, "--layer-ids", "0", "2", "4", "5", "8") == 0
        assert run(standin.url, "--layer-ids", "0", "2", "4", "5", "9") == 2
        assert "ids are 0 to 8" in capsys.readouterr().out
        assert run(standin.url, "--layer-ids", "0", "2") == 1
    assert "holds 5 layers where 2 were asked for" in capsys.readouterr().out


def test_output_tokens_are_compared_too(
    standin: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    standin.output = [7]
    with serving(standin):
        assert run(standin.url, "--json") == 0
    assert report(capsys)["comparison"]["rows"] > sum(
        len(body["prompt"]) for body in standin.requests
    )


def test_lock_whose_writer_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    lock = tmp_path / "a.safetensors.lock"
    lock.touch()
    wait_for_file(path, time.monotonic())
    assert not lock.exists()
    with pytest.raises(TimeoutError):
        wait_for_file(path, time.monotonic() + 0.1)
    threading.Timer(0.2, path.touch).start()
    wait_for_file(path, time.monotonic() + 5)
