"""What all commands have in common: --json, examples in --help, exit statuses."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from specshim import launch_vllm
from specshim.__main__ import COMMANDS, build_parser, main
from specshim.commands.help import ALWAYS, HELP
from specshim.detect import Environment


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_statuses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert f"specshim {command}" in printed.partition("examples:")[2]
    for status in (0, *ALWAYS):
        assert f"\n  {status} " in printed.partition("exit status:")[2]
    assert "--json" in printed


def test_the_launchers_help_has_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        launch_vllm.main(["--help"])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert "--dry-run\n" in printed.partition("examples:")[2]


@pytest.mark.parametrize(
    "example", [e for name in COMMANDS for e, _ in HELP[name].examples]
)
def test_examples_can_be_parsed(example: str) -> None:
    program, command, *words = shlex.split(example)
    assert (program, command in COMMANDS) == ("specshim", True)
    args = build_parser(command).parse_args([command, *words])
    assert args.command == command


def test_the_launchers_examples_can_be_parsed() -> None:
    for example, _ in HELP["launch_vllm"].examples:
        words = shlex.split(example)
        assert words[:3] == ["python", "-m", "specshim.launch_vllm"]
        args, vllm_args = launch_vllm.parse(words[3:])
        assert args.model and "--dry-run" not in vllm_args


CALLS: list[tuple[list[str], int]] = [
    (["list"], 0),
    (["doctor"], 0),
    (["explain", "hybrid-zero-states"], 0),
    (["explain", "nothing-of-the-kind"], 2),
    (["plan", "/nowhere/at/all"], 2),
    (["demo", "--report", "/nowhere/at/all/out.html"], 2),
    (["verify", "--url", "localhost:1", "--model", "/nowhere"], 2),
    (
        [
            "verify",
            "--url",
            "localhost:1",
            "--model",
            "/x",
            "--report",
            "/no/where.html",
        ],
        2,
    ),
]


@pytest.mark.parametrize(("words", "status"), CALLS)
def test_with_json_stdout_is_one_document(
    words: list[str],
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Environment(vllm="0.32.0")
    monkeypatch.setattr("specshim.demo.detect_environment", lambda: here)
    if words[0] == "verify":
        pytest.importorskip("torch")
    assert main([*words, "--json"]) == status
    content: Any = json.loads(capsys.readouterr().out)
    if status:
        assert content["exit_code"] == status
        assert content.get("error") or content["reason"]


@pytest.mark.parametrize("words", [["lost"], ["plan"], ["verify"], ["list", "--no"]])
def test_wrong_options_are_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_unexpected_and_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr("specshim.commands.listing.run", fail)
    error: BaseException = ZeroDivisionError("oh")
    assert main(["list"]) == 70
    assert "unexpected ZeroDivisionError: oh" in capsys.readouterr().err
    error = KeyboardInterrupt()
    assert main(["list"]) == 130
