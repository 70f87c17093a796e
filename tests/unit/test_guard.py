"""What the command-line programs make of an exception that nobody foresaw."""

from __future__ import annotations

import pytest

from specshim._guard import INTERRUPTED, UNEXPECTED, guarded


def test_unforeseen_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECSHIM_STRICT", raising=False)
    assert guarded(lambda: int("x")) == UNEXPECTED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specshim: unexpected ValueError: invalid literal")
    monkeypatch.setenv("SPECSHIM_STRICT", "1")
    with pytest.raises(ValueError, match="invalid literal"):
        guarded(lambda: int("x"))


def test_statuses() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert guarded(lambda: 2) == 2
    assert guarded(interrupted) == INTERRUPTED
