"""Progress: a bar with the time left on a terminal, nothing elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]  # stage, done, total

_BAR = 24
_SURE_AFTER_S = 1.0
"""A stage this old tells how long the rest of it will take."""


def progress_to(stream: TextIO) -> Progress:
    """A function that shows ``(stage, done, total)`` on ``stream``, if a terminal.

    A stage starts with the first call that names it and ends when ``done``
    reaches ``total``; its line then stays, with the seconds it took.
    """
    if not stream.isatty():
        return lambda stage, done, total: None
    started: dict[str, float] = {}

    def show(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        seconds = now - started.setdefault(stage, now)
        stream.write("\r" + _bar_line(stage, done, total, seconds))
        if done >= total:
            stream.write("\n")
            del started[stage]
        stream.flush()

    return show


def time_left(done: int, total: int, seconds: float) -> str:
    """How long the rest of a stage takes if it goes on as it did; "" if unknown."""
    if done <= 0 or done >= total or seconds < _SURE_AFTER_S:
        return ""
    left = round(seconds / done * (total - done))
    if left >= 60:
        return f", {left // 60} min {left % 60:02d} s left"
    return f", {left} s left"


def _bar_line(stage: str, done: int, total: int, seconds: float) -> str:
    share = min(1.0, done / total) if total else 1.0
    filled = round(share * _BAR)
    bar = "#" * filled + "-" * (_BAR - filled)
    width = shutil.get_terminal_size().columns - 1
    left = time_left(done, total, seconds)
    return f"[{bar}] {share:4.0%} {stage} {seconds:.0f} s{left}".ljust(width)[:width]
