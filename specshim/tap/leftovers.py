"""Temporary files that a killed server left in the storage folder."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from specshim._sample_files import is_temporary, remove

_YOUNG_SECONDS = 600.0
"""A writer of the cache route holds no lock, but writes all the time."""


def remove_leftovers(folder: str) -> int:
    """Remove temporary files that no living process writes; returns how many.

    The tap's writers hold an flock on theirs, which the kernel releases when the
    process is gone. Where flock does not work, nothing is removed. Files in folders
    below ``folder``, where clients may have asked for some, are not looked for.
    """
    removed = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                removed += _remove_if_left(entry.path)
    return removed


def _remove_if_left(path: str) -> bool:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:  # somebody else's, or gone meanwhile
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(descriptor).st_mtime < _YOUNG_SECONDS:
            return False
        remove(path)
        return not os.path.lexists(path)
    except OSError:  # it is held, or flock does not work here
        return False
    finally:
        os.close(descriptor)
