"""Applying and undoing: wholly or not at all, and without a trace."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import pickle
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from specshim import imports
from specshim.patching import (
    APPLY,
    LEDGER,
    NOT_NEEDED,
    REFUSED,
    Fingerprint,
    Patch,
    PatchRefused,
    Target,
    apply,
    arm,
    disarm,
    undo,
)

SOURCE = """
class Base:
    def inherited(self): return "base"
    @classmethod
    def made(cls): return cls.__name__
    @staticmethod
    def fixed(value): return value

class Child(Base):
    def own(self): return "own"

def function(): return "function"
"""


def marked(wrapped: Any, instance: Any, args: Any, kwargs: Mapping[str, Any]) -> str:
    return "patched " + wrapped(*args, **kwargs)


def boom(wrapped: Any, instance: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    raise AssertionError("must not be called")


ANY = (Fingerprint(),)


def patch(*targets: Target, **more: Any) -> Patch:
    values: dict[str, Any] = {
        "id": "test-patch",
        "summary": "s",
        "why": "w",
        "upstream": (),
        "affects": SpecifierSet(">=1.0,<2.0"),
        "targets": targets,
        "processes": ("trainer",),
        "remove_when": "upstream_of_tests>=2.0",
    }
    return Patch(**{**values, **more})


@pytest.fixture
def upstream(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A real package on disk, since fingerprints read source."""
    folder = tmp_path / "upstream_of_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '1.5'\n")
    (folder / "code.py").write_text(SOURCE)
    (folder / "user.py").write_text("from upstream_of_tests.code import function\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("SPECSHIM_STRICT", raising=False)
    import upstream_of_tests.code  # type: ignore[import-not-found]

    yield upstream_of_tests.code
    undo("test-patch")
    LEDGER.entries.pop("test-patch", None)
    LEDGER.failures.pop("test-patch", None)
    for name in [n for n in sys.modules if n.startswith("upstream_of_tests")]:
        del sys.modules[name]


CODE = "upstream_of_tests.code"


def snapshot(module: ModuleType) -> list[dict[str, int]]:
    """Identities, since a wrapper compares equal to what it wraps."""
    owners = (module, module.Base, module.Child)
    return [{name: id(v) for name, v in vars(o).items()} for o in owners]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Child.own", lambda m: m.Child().own()),
        ("Child.inherited", lambda m: m.Child().inherited()),
        ("Child.made", lambda m: m.Child.made()),
        ("Base.fixed", lambda m: m.Base.fixed("x")),
        ("function", lambda m: m.function()),
    ],
)
def test_apply_then_undo_leaves_no_trace(upstream: Any, name: str, call: Any) -> None:
    before, plain = snapshot(upstream), call(upstream)
    it = patch(Target(f"{CODE}.{name}", marked, ANY))
    for _ in range(2):  # idempotent
        verdict = apply(it)
        assert verdict is not None
        assert verdict.kind == APPLY
        assert call(upstream) == f"patched {plain}"
    undo(it.id)
    assert call(upstream) == plain
    assert snapshot(upstream) == before


def test_inherited_method_is_not_pinned_on_the_subclass(upstream: Any) -> None:
    it = patch(Target(f"{CODE}.Child.inherited", marked, ANY))
    apply(it)
    assert upstream.Base().inherited() == "base"
    undo(it.id)
    upstream.Base.inherited = lambda self: "new base"
    assert upstream.Child().inherited() == "new base"


def test_failure_half_way_undoes_the_first_half(upstream: Any) -> None:
    before = snapshot(upstream)
    good = Target(f"{CODE}.Child.own", marked, ANY)
    stone = Target(f"{CODE}.Stone.method", marked, ANY)

    class Stubborn(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError("cannot be set")

    upstream.Stone = Stubborn("Stone", (), {"method": lambda self: None})
    with pytest.raises(TypeError, match="cannot be set"):
        apply(patch(good, stone))
    del upstream.Stone
    assert snapshot(upstream) == before
    assert not LEDGER.is_installed("test-patch")
    assert "test-patch" in LEDGER.attempts


def test_aliases_are_rebound_and_restored(upstream: Any) -> None:
    from upstream_of_tests import user  # type: ignore[import-not-found]

    target = Target(
        f"{CODE}.function", marked, ANY, aliases=("upstream_of_tests.user.function",)
    )
    apply(patch(target))
    assert user.function() == "patched function"
    undo("test-patch")
    assert user.function is upstream.function


def test_copy_made_while_patched_is_restored_too(upstream: Any) -> None:
    target = Target(
        f"{CODE}.function", marked, ANY, aliases=("upstream_of_tests.user.function",)
    )
    apply(patch(target))
    from upstream_of_tests import user

    undo("test-patch")
    assert user.function is upstream.function
    assert user.function() == "function"


def test_wrapped_over_by_others_it_goes_inert(upstream: Any) -> None:
    apply(patch(Target(f"{CODE}.function", marked, ANY)))
    ours = upstream.function
    upstream.function = lambda: "theirs " + ours()
    undo("test-patch")
    assert upstream.function() == "theirs function"
    assert "Inert" in LEDGER.entries["test-patch"].reason


def test_wrapped_functions_pickle_by_name(upstream: Any) -> None:
    apply(patch(Target(f"{CODE}.function", marked, ANY)))
    assert pickle.loads(pickle.dumps(upstream.function)) is upstream.function


def test_bound_method_of_a_patched_class_pickles(upstream: Any) -> None:
    apply(patch(Target(f"{CODE}.Child.own", marked, ANY)))
    again = pickle.loads(pickle.dumps(upstream.Child().own))
    assert again() == "patched own"


def test_refused_changes_nothing_and_says_why(
    upstream: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = snapshot(upstream)
    look = (Fingerprint(contains=("something else",)),)
    it = patch(Target(f"{CODE}.function", boom, look))
    with caplog.at_level(logging.WARNING, logger="vllm.specshim"):
        verdicts = [apply(it), apply(it)]
    assert [v.kind for v in verdicts if v] == [REFUSED, REFUSED]
    assert snapshot(upstream) == before
    assert len(caplog.records) == 1
    assert "something else" in caplog.text


def test_refused_is_loud_when_strict(
    upstream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSHIM_STRICT", "1")
    missing = Target(f"{CODE}.Child.no_such_method", boom, ANY)
    with pytest.raises(PatchRefused, match="no_such_method does not exist"):
        apply(patch(missing))


def test_not_needed_changes_nothing(upstream: Any) -> None:
    before = snapshot(upstream)
    sys.modules["upstream_of_tests"].__version__ = "2.0"  # type: ignore[attr-defined]
    verdict = apply(patch(Target(f"{CODE}.function", boom, ANY)))
    assert verdict is not None
    assert verdict.kind == NOT_NEEDED
    assert snapshot(upstream) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["vllm", "serve", "m"], []),
        (
            ["vllm", "serve", "m", "-sc", '{"method": "extract_hidden_states"}'],
            ["WARNING"],
        ),
    ],
)
def test_a_refused_hook_is_told_only_where_hidden_states_are_extracted(
    upstream: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: list[str],
    said: list[str],
) -> None:
    monkeypatch.setattr(sys, "argv", command)
    other = Fingerprint(parameters=("something", "else"))
    hook = patch(Target(f"{CODE}.function", boom, (other,)))
    hook = dataclasses.replace(hook, kind="hook")
    with caplog.at_level(logging.INFO, logger="vllm.specshim"):
        verdict = apply(hook)
    assert verdict is not None and verdict.kind == REFUSED
    assert [record.levelname for record in caplog.records] == said


def test_armed_becomes_applied_on_import_and_again_on_reimport(upstream: Any) -> None:
    del sys.modules[CODE]
    arm([patch(Target(f"{CODE}.function", marked, ANY))])
    try:
        assert LEDGER.entries["test-patch"].state == "armed"
        assert not LEDGER.is_installed("test-patch")
        for _ in range(2):
            from importlib import import_module

            module = import_module(CODE)
            assert module.function() == "patched function"
            assert LEDGER.entries["test-patch"].state == "applied"
            del sys.modules[CODE]
    finally:
        imports._watcher().hooks.pop(CODE)


OLD, NEW = f"{CODE}.function", "upstream_of_tests.planning.function"


@pytest.fixture
def moved_upstream(upstream: ModuleType) -> ModuleType:
    """A later release: ``function`` is in a module that the old one imports."""
    assert upstream.__file__
    folder = Path(upstream.__file__).parent
    (folder / "planning.py").write_text("def function(): return 'planned'\n")
    facade = "from upstream_of_tests.planning import function\n"
    (folder / "code.py").write_text(facade)
    del sys.modules[CODE]
    return upstream


def test_a_moved_function_is_patched_where_it_is_defined(moved_upstream: Any) -> None:
    user = "upstream_of_tests.user.function"
    importlib.import_module("upstream_of_tests.user")
    it = patch(Target(OLD, marked, ANY, moved=(NEW,), aliases=(OLD, user)))
    apply(it)
    for module in ("planning", "code", "user"):
        copy = sys.modules[f"upstream_of_tests.{module}"].function
        assert copy() == "patched planned", module
    undo(it.id)
    assert sys.modules[CODE].function() == "planned"


def test_of_two_places_the_old_release_has_the_first(upstream: Any) -> None:
    arm([patch(Target(OLD, marked, ANY, moved=(NEW,)))])
    try:
        assert upstream.function() == "patched function"
        assert LEDGER.entries["test-patch"].state == "applied"
    finally:
        imports.drop("test-patch")


def test_it_waits_for_the_module_that_may_have_the_function(
    moved_upstream: Any,
) -> None:
    code = Path(moved_upstream.__file__)
    code.write_text("")  # moved for good
    arm([patch(Target(OLD, marked, ANY, moved=(NEW,)))])
    try:
        importlib.import_module(CODE)
        assert LEDGER.entries["test-patch"].state == "armed"
        planning = importlib.import_module("upstream_of_tests.planning")
        assert planning.function() == "patched planned"
        assert LEDGER.entries["test-patch"].state == "applied"
    finally:
        imports.drop("test-patch")


def test_nowhere_to_be_found_it_is_refused(upstream: Any) -> None:
    arm([patch(Target(f"{CODE}.gone", boom, ANY, moved=(NEW,)))])
    imports.drop("test-patch")
    entry = LEDGER.entries["test-patch"]
    assert entry.state == "refused"
    assert f"{CODE}.gone or {NEW} does not exist" in entry.reason


def test_failing_hook_is_contained_unless_strict(
    upstream: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Fingerprint):
        def mismatch(self, form: Any) -> None:
            raise RuntimeError("broken fingerprint")

    it = patch(Target(f"{CODE}.function", boom, (Broken(),)))
    try:
        with caplog.at_level(logging.WARNING, logger="vllm.specshim"):
            arm([it])
            arm([it])
        assert LEDGER.entries["test-patch"].state == "failed"
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        monkeypatch.setenv("SPECSHIM_STRICT", "1")
        with pytest.raises(RuntimeError, match="broken fingerprint"):
            arm([it])
    finally:
        imports._watcher().hooks.pop(CODE)


def test_disarmed_it_is_out_and_stays_out(upstream: Any) -> None:
    before = snapshot(upstream)
    declared = patch(Target(f"{CODE}.Child.own", marked, ANY))
    arm([declared])
    assert snapshot(upstream) != before
    disarm([declared])
    assert snapshot(upstream) == before
    del sys.modules[CODE]
    again = importlib.import_module(CODE)
    assert again.Child().own() == "own"
