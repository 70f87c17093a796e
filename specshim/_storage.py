"""Whether hidden states can be written to a folder, and to nowhere else through it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLDER_MODE = 0o775
"""Before the umask: never writable for everybody."""

LEAST_FREE_BYTES = 64 << 20
"""64 MiB: some 2,000 tokens of four layers of 4,096 in bfloat16."""


def storage_problem(
    path: str, *, create: bool, option: str = "--hidden-states-path"
) -> str | None:
    """One sentence where ``path`` cannot take hidden states, None where it can.

    With ``create`` the folder is made and written to, and where it is full, what a
    killed server left there is removed first; without, its nearest existing parent is
    looked at. ``option`` is what the path was given with.
    """
    folder = Path(path)
    advice = f"choose another folder with {option}."
    try:
        path.encode()
    except UnicodeEncodeError:
        return f"The storage path {path!a} is no text to tell clients; {advice}"
    try:
        problem = _somebody_elses(path)
        if problem is not None:
            return f"{problem}; {advice}"
        if create:
            make_folders(path)
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
        if free < LEAST_FREE_BYTES and create:
            # Which may be what the server before left when it was killed.
            from specshim.tap.leftovers import remove_leftovers

            remove_leftovers(path)
            free = shutil.disk_usage(folder).free
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return f"The storage path {path} cannot be written to ({reason}); {advice}"
    if free < LEAST_FREE_BYTES:
        return (
            f"The storage path {path} has {free >> 20} MiB free, less than "
            f"{LEAST_FREE_BYTES >> 20} MiB; free space there, or {advice}"
        )
    return None


def make_folders(path: str) -> None:
    """Make a folder and what it lies in, never writable for everybody.

    Raises:
        OSError: that is not possible.
    """
    with suppress(FileNotFoundError):
        os.lstat(path)  # a name that is too long, before half of it is there
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent or "."
    for folder in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(folder, FOLDER_MODE)
            continue
        if not os.path.isdir(folder):  # a file, or a link to nowhere
            raise NotADirectoryError(f"{folder} is not a folder")


def storage_warning(path: str) -> str | None:
    """One sentence where everybody could replace what lies in ``path``."""
    with suppress(OSError, ValueError):
        for part, _, found in _parts(path):
            if _open_to_all(found) and not found.st_mode & stat.S_ISVTX:
                return (
                    f"Everybody on this machine may rename and remove what lies in "
                    f"{part}, hidden states included: set its sticky bit (chmod +t) or "
                    "give it to a group."
                )
    return None


def _somebody_elses(path: str) -> str | None:
    """Why ``path`` is not to be trusted: another user has put a part of it in place.

    That is what everybody can do in a folder like /tmp. What root made is trusted, and
    so is a mounted file system.
    """
    with suppress(FileNotFoundError):
        for part, parent, found in _parts(path):
            strange = found.st_uid not in (0, os.geteuid())
            mounted = found.st_dev != parent.st_dev
            if _open_to_all(parent) and strange and not mounted:
                return (
                    f"The storage path {path} leads through {part}, which another user "
                    f"(uid {found.st_uid}) has put into a folder that everybody may "
                    "write to"
                )
    return None


def _open_to_all(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_IWOTH)


def _parts(path: str) -> Iterator[tuple[str, os.stat_result, os.stat_result]]:
    """Every folder and link on the way to ``path``: its path, its parent and itself.

    Raises:
        OSError: FileNotFoundError where the rest of the path does not exist.
    """
    here, parent = "/", os.lstat("/")
    left = os.path.abspath(path).split("/")[::-1]
    links = 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            parent = os.lstat(here)
            continue
        part = os.path.join(here, name)
        found = os.lstat(part)
        yield part, parent, found
        if not stat.S_ISLNK(found.st_mode):
            here, parent = part, found
            continue
        links += 1
        if links > 40:
            return  # whoever opens it will say so
        target = os.readlink(part)
        if target.startswith("/"):
            here, parent = "/", os.lstat("/")
        left += target.split("/")[::-1]
