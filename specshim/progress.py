"""Progress: a bar that redraws on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]  # stage, done, total

_BAR = 24


def progress_to(stream: TextIO) -> Progress:
    """A function that shows ``(stage, done, total)`` on ``stream``.

    A stage starts with the first call that names it and ends when ``done``
    reaches ``total``; it is then told with the seconds it took.
    """
    started: dict[str, float] = {}
    terminal = stream.isatty()

    def show(stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        begin = started.setdefault(stage, now)
        finished = done >= total
        if terminal:
            stream.write("\r" + _bar_line(stage, done, total, now - begin))
        if finished:
            seconds = f"{now - begin:.0f} s"
            stream.write("\n" if terminal else f"{stage}: done in {seconds}\n")
            del started[stage]
        stream.flush()

    return show


def _bar_line(stage: str, done: int, total: int, seconds: float) -> str:
    share = min(1.0, done / total) if total else 1.0
    filled = round(share * _BAR)
    bar = "#" * filled + "-" * (_BAR - filled)
    width = shutil.get_terminal_size().columns - 1
    return f"[{bar}] {share:4.0%} {stage} {seconds:.0f} s".ljust(width)[:width]
