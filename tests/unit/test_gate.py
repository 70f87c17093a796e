"""The two gates and the three verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from specshim.patching import (
    APPLY,
    NOT_NEEDED,
    REFUSED,
    Fingerprint,
    Form,
    Patch,
    Target,
    judge,
)
from specshim.patching.declaration import split_name
from specshim.patching.form import form_in_tree, form_of
from specshim.patching.gate import NEWEST_KNOWN, switched_off

FAULTY = Form(("self", "request"), "def f(self, request): return names.pop(request)")
FIXED = Form(("self", "request"), "def f(self, request): return names.pop(request, 0)")
OTHER = Form(("self", "batch"), "def f(self, batch): ...")
NAME = "vllm.core.Engine.f"


def patch(affects: str = ">=0.24.0,<0.31.0", **more: Any) -> Patch:
    look = Fingerprint(("self", "request"), contains=("names.pop(request)",))
    repaired = Fingerprint(contains=("names.pop(request, 0)",))
    values: dict[str, Any] = {
        "id": "some-fault",
        "summary": "s",
        "why": "w",
        "upstream": (),
        "affects": SpecifierSet(affects),
        "targets": (Target(NAME, lambda w, i, a, k: w(*a, **k), (look,), repaired),),
        "processes": ("worker",),
        "remove_when": "vllm>=0.31.0",
    }
    return Patch(**{**values, **more})


@pytest.mark.parametrize(
    ("version", "form", "verdict"),
    [
        ("0.24.0", FAULTY, APPLY),
        ("0.30.0.post1", FAULTY, APPLY),
        ("0.24.0+cu129", FAULTY, APPLY),
        ("0.24.0", OTHER, REFUSED),
        ("0.24.0", None, REFUSED),
        ("0.26.0", FIXED, NOT_NEEDED),  # a vendor's backport
        ("0.20.1", FAULTY, NOT_NEEDED),
        ("0.31.0", FIXED, NOT_NEEDED),
        ("0.99.0", OTHER, NOT_NEEDED),  # fixed long before; the look matters no more
        # no known release: the look alone decides
        ("0.21.1.dev45+g12ab", FAULTY, APPLY),
        ("0.31.1.dev3", FAULTY, APPLY),
        ("0.24.0+g12ab", FIXED, NOT_NEEDED),
        ("0.30.0rc1", OTHER, REFUSED),
        ("dev", FAULTY, APPLY),
        (None, OTHER, REFUSED),
    ],
)
def test_verdict(version: str | None, form: Form | None, verdict: str) -> None:
    found = judge(patch(), version, {NAME: form})
    assert found.kind == verdict
    assert found.reason.endswith(".")


@pytest.mark.parametrize(("form", "verdict"), [(FAULTY, APPLY), (OTHER, REFUSED)])
def test_release_newer_than_all_known_is_judged_by_its_look(
    form: Form, verdict: str
) -> None:
    open_fault = patch(f">=0.17.0,<={NEWEST_KNOWN['vllm']}")
    assert judge(open_fault, "99.0", {NAME: form}).kind == verdict


def test_refusal_says_what_differs() -> None:
    reason = judge(patch(), "0.24.0", {NAME: OTHER}).reason
    assert NAME in reason
    assert "its parameters are (self, batch)" in reason


MOVED = "vllm.engine.Engine.f"


@pytest.mark.parametrize(
    ("forms", "verdict", "sentence"),
    [
        ({NAME: FAULTY, MOVED: None}, APPLY, "looks as expected"),
        ({NAME: None, MOVED: FAULTY}, APPLY, "looks as expected"),
        ({NAME: FAULTY, MOVED: OTHER}, APPLY, "looks as expected"),
        ({MOVED: FIXED}, NOT_NEEDED, "has the repaired code"),
        ({NAME: None, MOVED: OTHER}, REFUSED, f"{MOVED}: its parameters"),
        ({}, REFUSED, f"{NAME} or {MOVED} does not exist"),
    ],
)
def test_a_function_that_moved_is_judged_where_it_is(
    forms: dict[str, Form | None], verdict: str, sentence: str
) -> None:
    moved = replace(patch().targets[0], moved=(MOVED,))
    found = judge(patch(targets=(moved,)), "0.24.0", forms)
    assert found.kind == verdict
    assert sentence in found.reason


def test_all_places_lie_in_one_package() -> None:
    elsewhere = replace(patch().targets[0], moved=("other.Engine.f",))
    with pytest.raises(ValueError, match="one package"):
        patch(targets=(elsewhere,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"affects": SpecifierSet(">=0.24.0")}, "no upper bound"),
        ({"affects": SpecifierSet("<0.24.0")}, "no lower bound"),
        ({"processes": ("kitchen",)}, "processes"),
        ({"rung": "replace method"}, "why_not_lower"),
        ({"remove_when": ""}, "remove_when"),
    ],
)
def test_incomplete_declaration(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patch(**changes)


@pytest.mark.parametrize(
    ("variables", "off"),
    [
        ({}, False),
        ({"SPECSHIM_DISABLE": "other, some-fault"}, True),
        ({"SPECSHIM_DISABLE": "*"}, True),
        ({"SPECSHIM_ONLY": "other"}, True),
        ({"SPECSHIM_ONLY": "some-fault"}, False),
        ({"SPECSHIM": "0"}, True),
    ],
)
def test_switches(variables: dict[str, str], off: bool) -> None:
    assert (switched_off(patch(), variables) is not None) is off


def test_a_route_keeps_its_hooks_when_all_patches_are_off() -> None:
    hook = patch(kind="hook")
    assert switched_off(hook, {"SPECSHIM_DISABLE": "*"}) is None
    assert switched_off(hook, {"SPECSHIM_ONLY": "other"}) is None
    assert switched_off(hook, {"SPECSHIM_DISABLE": "some-fault"}) is not None


@pytest.mark.parametrize(
    ("name", "module", "qualname"),
    [
        ("a.b.Worker.load_model", "a.b", "Worker.load_model"),
        ("a.b._Private.run", "a.b", "_Private.run"),
        ("a.b.function", "a.b", "function"),
        ("a.b:lower.method", "a.b", "lower.method"),
    ],
)
def test_split_name(name: str, module: str, qualname: str) -> None:
    assert split_name(name) == (module, qualname)


def test_a_function_looks_the_same_live_and_in_the_tree() -> None:
    tree = Path(__file__).parent.parent.parent
    assert form_in_tree(tree, "specshim.patching.form", "form_of") == form_of(form_of)
    method = form_of(Fingerprint.mismatch)
    name = "Fingerprint.mismatch"
    assert form_in_tree(tree, "specshim.patching.declaration", name) == method
    assert method.parameters == ("self", "form")


def test_an_overload_is_not_the_function(tmp_path: Path) -> None:
    overloads = "@overload\ndef f(a: int) -> int: ...\n"
    (tmp_path / "m.py").write_text(f"{overloads}def f(b):\n    return b\n")
    form = form_in_tree(tmp_path, "m", "f")
    assert form is not None and form.parameters == ("b",)
