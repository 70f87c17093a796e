"""Command-line programs print arguments that are no text, escaped, without ado."""

from __future__ import annotations

import io
import sys

import pytest

from specshim._guard import guarded


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("text", ["\udcff\udcfe", "\ud800", "ü"])
def test_what_no_terminal_can_show_is_escaped(monkeypatch, encoding, text):
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert guarded(lambda: print("--served-model-name", text) or 0) == 0
    line = written.getvalue().decode(encoding)
    shown = text if encoding == "utf-8" and text == "ü" else ascii(text)[1:-1]
    assert line == f"--served-model-name {shown}\n"
