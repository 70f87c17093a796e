"""``specshim.require``: silent where all is as asked, else one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import specshim
from specshim import RequirementNotMet, require
from specshim.detect import Environment, PatchVerdict

HOOK = PatchVerdict("tap-loaded-model", "hook", "APPLY", "It fits.")
SERVER = {
    "vllm": "0.32.0",
    "torch": "2.13.0+cu130",
    "speculators": "0.9.0",
    "patches": (HOOK,),
}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def set_up(environment: Mapping[str, Any], *, visible: bool = True) -> None:
        here = Environment(**{**SERVER, **environment})
        monkeypatch.setattr("specshim.detect.detect_environment", lambda: here)
        monkeypatch.setattr("specshim.detect.plugin.plugin_visible", lambda: visible)

    return set_up


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"vllm": ">=0.20"},
        {"vllm": ">=0.20,<0.33", "route": "tap"},
        {"torch": "==2.13.*"},
        {"speculators": ">=0.8", "route": "cache"},
        {"specshim": f"=={specshim.__version__}"},
    ],
)
def test_what_is_as_asked_is_silent(install: Any, asked: dict[str, Any]) -> None:
    install({})
    assert require(**asked) is None


@pytest.mark.parametrize("version", ["0.21.0rc1", "0.21.1.dev45+g12ab", "0.32.0+cpu"])
def test_other_kinds_of_versions_count_by_their_number(
    install: Any, version: str
) -> None:
    install({"vllm": version})
    require(vllm=">=0.20")
    with pytest.raises(RequirementNotMet):
        require(vllm=">=0.40")


@pytest.mark.parametrize(
    ("environment", "asked", "sentence"),
    [
        (
            {},
            {"vllm": ">=0.40"},
            "vllm>=0.40 is required, and vllm 0.32.0 is installed",
        ),
        ({"vllm": None}, {"vllm": ">=0.20"}, "there is no vllm in this Python"),
        ({"vllm": "unknown"}, {"vllm": ">=0.20"}, "says no version number"),
        ({}, {"hs_connectors": ">=0.9"}, "there is no hs_connectors in this Python"),
        ({}, {"specshim": ">=99"}, "specshim>=99 is required"),
        ({"vllm": None}, {"route": "tap"}, "run it where vLLM is"),
        ({"vllm": "0.16.2"}, {"route": "tap"}, "vLLM 0.16.2 is older than 0.17"),
        ({"variables": {"SPECSHIM": "0"}}, {"route": "tap"}, "SPECSHIM=0 switches"),
        (
            {"variables": {"SPECSHIM_ROUTE": "cache"}},
            {"route": "tap"},
            "SPECSHIM_ROUTE=cache asks for another",
        ),
        (
            {"variables": {"VLLM_PLUGINS": "lora"}},
            {"route": "cache"},
            "VLLM_PLUGINS=lora leaves specshim out",
        ),
        ({"missing_tap_hooks": ("a.B.c",)}, {"route": "tap"}, "lacks a.B.c"),
        (
            {"patches": (PatchVerdict("x", "patch", "REFUSED", "It differs."),)},
            {"route": "cache"},
            "x is refused: It differs.",
        ),
    ],
)
def test_what_is_not_is_one_sentence(
    install: Any, environment: dict[str, Any], asked: dict[str, Any], sentence: str
) -> None:
    install(environment)
    with pytest.raises(RequirementNotMet) as raised:
        require(**asked)
    said = str(raised.value)
    assert sentence in said
    assert said.endswith(".") and "\n" not in said


def test_a_plugin_that_vllm_would_not_load(install: Any) -> None:
    install({}, visible=False)
    with pytest.raises(RequirementNotMet, match="importable but not installed"):
        require(route="tap")
    require(vllm=">=0.20")


def test_a_request_that_cannot_be_read(install: Any) -> None:
    install({})
    with pytest.raises(ValueError, match="is no version specifier"):
        require(vllm="0.20")
    with pytest.raises(ValueError, match="takes 'tap' or 'cache'"):
        require(route="fast")  # type: ignore[arg-type]


def test_it_is_a_runtime_error_that_scripts_can_catch() -> None:
    assert issubclass(specshim.RequirementNotMet, RuntimeError)
