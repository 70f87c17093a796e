"""What others wrote stays on the line of the sentence that shows it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specshim._plan_types import Change, LaunchPlan
from specshim._sentences import one_line
from specshim.argv import Reading, Rewriting
from specshim.detect import ModelNotFound

ODD = "a\nb\x1b[2J\u202e\ud800\0ü."
SEEN = r"a\nb\x1b[2J\u202e\ud800\x00ü."


def test_what_cannot_be_printed_is_escaped():
    assert one_line(ODD) == SEEN
    assert one_line("plain ü, 水.") == "plain ü, 水."


def test_every_value_that_holds_sentences_holds_lines():
    reading = Reading((), problems=(ODD,), notes=(ODD, "x"))
    assert reading.problems == (SEEN,) and reading.notes == (SEEN, "x")
    assert Rewriting((), (ODD,)).problems == (SEEN,)
    plan = LaunchPlan("none", ODD, warnings=(ODD,), refusal=ODD)
    assert (plan.reason, *plan.warnings, plan.refusal) == (SEEN,) * 3
    assert Change("model", 1, ODD).why == SEEN
    assert str(ModelNotFound(ODD)) == SEEN


@pytest.mark.parametrize("command", ["plan", "launch"])
def test_a_model_named_with_a_line_end_gets_one_line(command, tmp_path):
    module = ("specshim", "plan") if command == "plan" else ("specshim.launch_vllm",)
    ended = subprocess.run(
        [sys.executable, "-m", *module, f"{tmp_path}/no\nsuch\x1bmodel"],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    errors = [line for line in ended.stderr.split("\n") if line]
    assert len(errors) == 1 and errors[0].isprintable()
