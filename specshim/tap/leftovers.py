"""What a killed server left below the storage folder, swept at the next start."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from contextlib import suppress

from specshim._sample_files import HELD, hold, is_temporary, remove

logger = logging.getLogger("vllm.specshim")

LOCK_SUFFIX = ".safetensors.lock"
STALE_SECONDS = 10.0
"""Age of a lock file, free and without its file, from which on it is swept. Whoever
comes later finds no file either way; the reason in it is for clients that wait."""

MOST_ENTRIES = 200_000
"""Names that are looked at; a storage folder may hold somebody's whole disk."""


def remove_leftovers(folder: str) -> int:
    """Remove what no living process writes or waits for; returns how many files.

    Temporary files and folders of both routes, whose writers hold an flock that the
    kernel releases with the process, and lock files of names that end in
    ``.safetensors``. In folders below, too, since clients may have named some. Nothing
    is removed where flock does not work; no link is followed.
    """
    removed = seen = 0
    folders = deque([folder])  # the upper ones first, where most files are
    while folders:
        with suppress(OSError), os.scandir(folders.popleft()) as entries:
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    logger.info(
                        "specshim: %s holds more than %d names, not all of which were "
                        "searched for what a killed server left.",
                        folder,
                        MOST_ENTRIES,
                    )
                    return removed
                if entry.is_dir(follow_symlinks=False):
                    if is_temporary(entry.name):
                        removed += _remove_folder(entry.path)
                    else:
                        folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    removed += _remove_file(entry)
    return removed


def _remove_file(entry: os.DirEntry[str]) -> bool:
    if is_temporary(entry.name):
        return _remove_if_free(entry.path)
    if not entry.name.endswith(LOCK_SUFFIX):
        return False
    if os.path.lexists(entry.path.removesuffix(".lock")):
        return False  # complete; its reader will remove both
    return _remove_if_free(entry.path, older_than=STALE_SECONDS)


def _remove_if_free(path: str, older_than: float = 0.0) -> bool:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:  # somebody else's, or gone meanwhile
        return False
    try:
        # A writer looks again once it holds its file, so that none loses it here.
        if not hold(descriptor) or _age(os.fstat(descriptor)) < older_than:
            return False
        remove(path)
        return not os.path.lexists(path)
    finally:
        os.close(descriptor)


def _remove_folder(path: str) -> bool:
    """A folder in which the cache route writes one sample; it holds the file HELD."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.join(path, HELD), flags)
    except FileNotFoundError:  # between two steps of a living writer, if it is young
        if _age(os.stat(path, follow_symlinks=False)) < STALE_SECONDS:
            return False
        return _empty(path)
    except OSError:
        return False
    try:
        return hold(descriptor) and _empty(path)
    finally:
        os.close(descriptor)


def _empty(path: str) -> bool:
    """Remove a folder and the files in it; folders in it are not ours, and stay."""
    with suppress(OSError):
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    return not os.path.lexists(path)


def _age(found: os.stat_result) -> float:
    return time.time() - found.st_mtime
