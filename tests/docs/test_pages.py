"""Tables of the docs that are written by hand say what the code says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from pathlib import Path

from specshim.patching import Patch

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def names_in_first_column(text: str) -> set[str]:
    return set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))


def test_every_variable_that_is_read_is_listed_and_no_other():
    sources = [*(ROOT / "specshim").rglob("*.py"), *(ROOT / "patches").rglob("*.py")]
    read = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"SPECSHIM(_[A-Z_]+)?", node.value)
    }
    page = (DOCS / "environment.md").read_text().partition("## Those of others")[0]
    assert names_in_first_column(page) == read
    assert "SPECSHIM_ROUTE" in read


def test_the_public_api_is_what_is_exported():
    listed = names_in_first_column((DOCS / "api.md").read_text())
    for name in listed:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    for module in ("specshim", "specshim.guard"):
        public = importlib.import_module(module).__all__
        assert {f"{module}.{name}" for name in public} <= listed


def test_the_fields_of_a_patch_are_explained():
    page = (DOCS / "writing-a-patch.md").read_text()
    fields = {field.name for field in dataclasses.fields(Patch)}
    assert names_in_first_column(page) == fields
