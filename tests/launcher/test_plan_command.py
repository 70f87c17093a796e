"""``specshim plan``: arguments, text, JSON, exit status."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import pytest
from launcher_values import launch, model

from specshim._launch import describe
from specshim.commands.plan import (
    add_arguments,
    collect,
    release_notes,
    run,
    text_lines,
)
from specshim.detect import Environment, PatchVerdict

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 128,
}


def parse(*argv: str) -> argparse.Namespace:
    main = argparse.ArgumentParser()
    add_arguments(main.add_subparsers().add_parser("plan"))
    return main.parse_args(["plan", *argv])


def test_vllm_arguments_stand_behind_the_dashes() -> None:
    args = parse("MODEL", "--vllm", "0.20.1", "--json", "--", "--port", "1", "--json")
    assert (args.model, args.vllm, args.json) == ("MODEL", "0.20.1", True)
    assert args.vllm_args == ["--port", "1", "--json"]
    assert parse("MODEL", "--route", "cache").specshim_route == "cache"
    assert parse("MODEL").vllm_args == []


def test_an_unknown_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse("MODEL", "--jsn")
    assert stopped.value.code == 2
    assert "--jsn" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["bogus", "", "0.32.x"])
def test_a_release_that_is_no_version(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse("MODEL", "--vllm", version)
    assert stopped.value.code == 2
    assert f"{version!r} is no version" in capsys.readouterr().err
    assert parse("MODEL", "--vllm", "0.21.1.dev45+g12ab").vllm == "0.21.1.dev45+g12ab"


@pytest.mark.parametrize(
    ("version", "named", "sentences"),
    [
        ("0.32.0", False, []),
        ("0.32.1", True, ["is named, not inspected"]),
        ("0.33.0", False, ["is newer than 0.32.0"]),
        ("0.99.0", True, ["is named, not inspected", "is newer than 0.32.0"]),
    ],
)
def test_what_is_not_known_of_a_release(
    version: str, named: bool, sentences: list[str]
) -> None:
    found = list(release_notes(Environment(vllm=version), named=named))
    assert len(found) == len(sentences)
    assert all(text in note for text, note in zip(sentences, found, strict=True))


def test_where_vllm_is_not(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "specshim.commands.plan.detect_environment", lambda vllm: Environment(vllm=vllm)
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert run(parse(str(tmp_path))) == 2
    refused = capsys.readouterr().out.splitlines()[-1]
    assert refused.startswith("Refused: vLLM is not installed")
    assert refused.endswith(", or name a release with --vllm 0.32.0.")


def test_the_options_for_vllm_say_what_the_model_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    over = ("--hf-overrides", '{"num_hidden_layers": 6}')
    assert run(parse(str(tmp_path), "--vllm", "0.32.0", "--json", "--", *over)) == 0
    assert json.loads(capsys.readouterr().out)["layer_ids"] == [2, 3, 3, 6]


def test_the_report() -> None:
    hook = PatchVerdict("reroute", "hook", "APPLY", "In range.")
    made = launch(
        *("MODEL", "--", "--speculative_config={}"), vllm="0.21.0", patches=(hook,)
    )
    report = collect(Environment(vllm="0.21.0"), model(), made)
    assert json.loads(json.dumps(report))["model"]["num_hidden_layers"] == 8
    assert report["command"] == list(made.command)
    removed = [c["option"] for c in report["changes"] if c["removed"]]
    assert removed == ["speculative_config"]

    lines = list(text_lines(report))
    assert ("vLLM", "0.21.0") in lines
    assert ("Route", "tap") in lines
    assert ("Layer ids", "2 4 5 8") in lines
    assert ("Hook", "reroute: APPLY. In range.") in lines
    assert "hook reroute: APPLY. In range." in describe(made)
    assert lines[-1] == ("Command", shlex.join(made.command))


def test_the_report_of_a_refusal() -> None:
    made = launch("MODEL", "--target-layer-ids", "9")
    lines = list(text_lines(collect(Environment(), model(), made)))
    assert lines[-1] == ("Refused", made.refusal)


def test_a_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("specshim.detect.versions", reason="detection is not there yet")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert run(parse(str(tmp_path), "--vllm", "0.20.1", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["versions"]["vllm"], report["route"]) == ("0.20.1", "tap")
    assert report["model"]["num_hidden_layers"] == 8
    assert run(parse(str(tmp_path), "--vllm", "0.16.0")) == 2
    assert "Refused: vLLM 0.16.0 cannot extract" in capsys.readouterr().out
    assert run(parse(str(tmp_path / "none"))) == 2
    assert capsys.readouterr().err.startswith("specshim plan: ")
