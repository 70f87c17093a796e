"""Whether hidden states can be written to a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

LEAST_FREE_BYTES = 64 << 20
"""64 MiB: some 2,000 tokens of four layers of 4,096 in bfloat16."""


def storage_problem(
    path: str, *, create: bool, option: str = "--hidden-states-path"
) -> str | None:
    """One sentence where ``path`` cannot take hidden states, None where it can.

    With ``create`` the folder is made and written to; without, its nearest existing
    parent is looked at. ``option`` is what the path was given with.
    """
    folder = Path(path)
    advice = f"choose another folder with {option}."
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        else:
            while not folder.exists() and folder != folder.parent:
                folder = folder.parent
            if not folder.is_dir():
                return f"The storage path {path} is not a folder; {advice}"
            if not os.access(folder, os.W_OK | os.X_OK):
                return f"The storage path {path} is not writable; {advice}"
        free = shutil.disk_usage(folder).free
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return f"The storage path {path} cannot be written to ({reason}); {advice}"
    if free < LEAST_FREE_BYTES:
        return (
            f"The storage path {path} has {free / 2**20:.0f} MiB free, less than "
            f"64 MiB; free space there, or {advice}"
        )
    return None
