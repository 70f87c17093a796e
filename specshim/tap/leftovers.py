"""What a killed server left below the storage folder, swept at the next start."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from specshim._sample_files import HELD, hold, is_temporary
from specshim.tap.folder import OPEN_FILE, OPEN_FOLDER

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
    folders: deque[tuple[str, ...]] = deque([()])  # the upper ones first: most files
    while folders:
        below = folders.popleft()
        with (
            suppress(OSError),
            _opened(folder, *below) as here,
            os.scandir(here) as entries,
        ):
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
                        removed += _remove_folder(entry.name, here)
                    else:
                        folders.append((*below, entry.name))
                elif entry.is_file(follow_symlinks=False):
                    removed += _remove_file(entry.name, here)
    return removed


@contextmanager
def _opened(folder: str, *below: str, at: int | None = None) -> Iterator[int]:
    """A folder's descriptor; below it no link is followed, whenever it was planted.

    What is removed is named relative to it: who may write to the storage path could
    otherwise have a server remove files elsewhere.
    """
    flags = OPEN_FOLDER if at is not None else OPEN_FOLDER & ~os.O_NOFOLLOW
    descriptor = os.open(folder, flags, dir_fd=at)
    try:
        for name in below:
            inner = os.open(name, OPEN_FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_file(name: str, here: int) -> bool:
    if is_temporary(name):
        return _remove_if_free(name, here)
    if not name.endswith(LOCK_SUFFIX) or _exists(name.removesuffix(".lock"), here):
        return False  # if complete, its reader will remove both
    return _remove_if_free(name, here, older_than=STALE_SECONDS)


def _remove_if_free(name: str, here: int, older_than: float = 0.0) -> bool:
    try:
        descriptor = os.open(name, OPEN_FILE, dir_fd=here)
    except OSError:  # somebody else's, or gone meanwhile
        return False
    try:
        # A writer looks again once it holds its file, so that none loses it here.
        if not hold(descriptor) or _age(os.fstat(descriptor)) < older_than:
            return False
        with suppress(OSError):
            os.unlink(name, dir_fd=here)
        return not _exists(name, here)
    finally:
        os.close(descriptor)


def _remove_folder(name: str, here: int) -> bool:
    """A folder in which the cache route writes one sample; it holds the file HELD."""
    with suppress(OSError), _opened(name, at=here) as inside:
        try:
            descriptor = os.open(HELD, OPEN_FILE, dir_fd=inside)
        except FileNotFoundError:  # between two steps of a living writer, if young
            young = _age(os.fstat(inside)) < STALE_SECONDS
            return not young and _empty(name, here, inside)
        try:
            return hold(descriptor) and _empty(name, here, inside)
        finally:
            os.close(descriptor)
    return False


def _empty(name: str, here: int, inside: int) -> bool:
    """Remove a folder and the files in it; folders in it are not ours, and stay."""
    with suppress(OSError):
        for file in os.listdir(inside):
            os.unlink(file, dir_fd=inside)
        os.rmdir(name, dir_fd=here)
    return not _exists(name, here)


def _exists(name: str, here: int) -> bool:
    try:
        os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _age(found: os.stat_result) -> float:
    return time.time() - found.st_mtime
