"""``explain`` and ``list``: ids that are nearly right, one way to write ranges."""

from __future__ import annotations

import pytest

from specshim.__main__ import main


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("rerout", "did you mean reroute?"),
        ("abort-schedule", "did you mean abort-before-schedule?"),
        ("abort_before_schedule", "did you mean abort-before-schedule?"),
        ("zzz", "specshim list shows all"),
    ],
)
def test_unknown_ids(
    wanted: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", wanted]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("command", [("list",), ("explain", "abort-before-schedule")])
def test_ranges_are_written_lower_bound_first(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    assert "vllm >=0.24.0,<0.31.0" in capsys.readouterr().out


def test_explain_says_symptom_cause_fix_and_how_to_see_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "abort-before-schedule"]) == 0
    printed = capsys.readouterr().out
    for said in (
        "Symptom and cause: Under load the engine dies with KeyError",
        "Fix: Nothing was computed, so there is nothing to save",
        "How to see it: The log of an engine that died has KeyError",
        "specshim doctor shows in which processes",
    ):
        assert said in printed


def test_help_is_for_users(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert "hidden-state extraction" in printed
    assert "module" not in printed
