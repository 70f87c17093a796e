"""The folder of a sample's files, opened so that no link leads out of the storage path.

Names are resolved when they are used, relative to descriptors: between the scheduler's
look at a path and the worker's use of it anybody may have put a link there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from specshim._sample_files import hold, temporary_name
from specshim._storage import FOLDER_MODE, make_folders

FILE_MODE = 0o644  # before the umask

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LockUnsupported(OSError):
    """The file system has no flock, so a client could not wait for the file."""


class Folder:
    """An open folder. Names in it stand for themselves; a link is never followed."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def create(self, name: str) -> int:
        """A descriptor of a new file.

        Raises:
            OSError: there is something of that name, or it cannot be made.
        """
        flags = OPEN_FILE | os.O_CREAT | os.O_EXCL
        return os.open(name, flags, FILE_MODE, dir_fd=self._descriptor)

    def lock(self, name: str) -> int:
        """A descriptor of the lock file ``name``, which it creates and holds.

        Raises:
            LockUnsupported: flock fails for another reason than that it is held.
            OSError: it is held by another process, it is no file, or it cannot be
                created.
        """
        while True:
            descriptor, created = self._new_or_known(name)
            try:
                self._hold(descriptor, name)
                # A client that is done with an earlier file may have removed the lock
                # file between our open and our flock.
                if self.names(name, descriptor):
                    return descriptor
            except OSError as error:
                if created and isinstance(error, LockUnsupported):
                    self.remove_same(name, descriptor)
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _new_or_known(self, name: str) -> tuple[int, bool]:
        """A descriptor of the file ``name``, and whether it is new."""
        while True:
            with suppress(FileExistsError):
                return self.create(name), True
            with suppress(FileNotFoundError):  # gone meanwhile
                return os.open(name, OPEN_FILE, dir_fd=self._descriptor), False

    def _hold(self, descriptor: int, name: str) -> None:
        path = os.path.join(self._path, name)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):  # a FIFO, say
            raise OSError(errno.EINVAL, f"{path} is in the way: it is not a file")
        if found.st_nlink > 1:  # somebody's, which we would empty
            raise OSError(errno.EMLINK, f"{path} is in the way: a file of two names")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                text = f"{path} is locked by another process"
                raise OSError(error.errno, text) from None
            text = f"flock on {path}: {error.strerror}"
            raise LockUnsupported(error.errno, text) from None

    def create_temporary(self) -> tuple[str, int]:
        """A new file, held so that no other server sweeps it away: name, descriptor."""
        while True:
            name = temporary_name()
            descriptor = self.create(name)
            if not hold(descriptor) or self.names(name, descriptor):
                return name, descriptor
            os.close(descriptor)  # swept between its creation and our flock

    def join_temporary(self, name: str) -> int:
        """A descriptor of the file ``name``, made by the first who comes.

        All who join hold it together, so that no server sweeps it away.

        Raises:
            OSError: it cannot be made, or is not what another of us made.
        """
        flags = OPEN_FILE | os.O_CREAT
        while True:
            descriptor = os.open(name, flags, FILE_MODE, dir_fd=self._descriptor)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                    path = os.path.join(self._path, name)
                    raise OSError(errno.EINVAL, f"{path} is in the way")
                with suppress(OSError):  # a sweep lets go at once; no flock: no sweep
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                if self.names(name, descriptor):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # swept between its creation and our flock

    def open_same(self, name: str, descriptor: int) -> int:
        """Another descriptor of the open file, by its name; OSError if it has none."""
        another = os.open(name, OPEN_FILE, dir_fd=self._descriptor)
        if os.path.samestat(os.fstat(another), os.fstat(descriptor)):
            return another
        os.close(another)
        raise OSError(errno.ENOENT, f"{name} is another file by now")

    def exists(self, name: str) -> bool:
        """Whether there is something of this name."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def stat(self, name: str) -> os.stat_result:
        """What has this name, a link itself."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def names(self, name: str, descriptor: int) -> bool:
        """Whether ``name`` is that of the open file."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.stat(name))
        except OSError:
            return False

    def rename(self, name: str, new: str) -> None:
        """Give a file another name; what had that name is gone, a link itself too."""
        here = self._descriptor
        os.rename(name, new, src_dir_fd=here, dst_dir_fd=here)

    def unlink(self, name: str) -> None:
        """Remove a file, or a link; none of that name is no error.

        Raises:
            OSError: it is a folder, or cannot be removed.
        """
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """:meth:`unlink` if that is possible.

        A file system that fails here has failed the sample already, or keeps a file
        that nobody is told of; neither may stop the server.
        """
        with suppress(OSError):
            self.unlink(name)

    def remove_same(self, name: str, descriptor: int) -> None:
        """:meth:`remove` where ``name`` is that of the open file."""
        if self.names(name, descriptor):
            self.remove(name)

    def remove_unchanged(self, name: str, found: os.stat_result) -> None:
        """:meth:`remove` the file that was ``found``, though it is not open.

        The number of a file that is gone is given to the next one.
        """
        with suppress(OSError):
            now = self.stat(name)
            if os.path.samestat(now, found) and now.st_mtime_ns == found.st_mtime_ns:
                self.remove(name)

    def remove_free_lock(self, name: str) -> None:
        """Remove a lock file of ours that nobody has taken since."""
        with suppress(OSError):
            descriptor = os.open(name, OPEN_FILE, dir_fd=self._descriptor)
            try:
                if hold(descriptor):
                    self.remove_same(name, descriptor)
            finally:
                os.close(descriptor)

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def close(self) -> None:
        """Close the descriptor; more than once is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Storage:
    """The storage path as it was when the server started, and what lies below it.

    The path itself may go through links: whoever started the server chose it, and
    :func:`specshim._storage.storage_problem` has looked at whose they are.
    """

    def __init__(self, path: str) -> None:
        self._given = os.path.abspath(path)
        self._real = os.path.realpath(path)
        with suppress(OSError):
            self._owners = {os.getuid(), os.stat(self._real).st_uid}
            return
        self._owners = {os.getuid()}

    @contextmanager
    def using(self, path: str) -> Iterator[Folder]:
        """:meth:`open`, and closed at the end."""
        folder = self.open(path)
        try:
            yield folder
        finally:
            folder.close()

    def open(self, path: str) -> Folder:
        """The folder of the file ``path``, made where it is missing.

        Args:
            path: absolute, below the storage path as given or as it really is.

        Raises:
            OSError: it cannot be opened, it is reached through a link, or the storage
                path belongs to somebody else by now.
        """
        *folders, _ = self._below(path)
        descriptor = self._open_root()
        try:
            for name in folders:
                with suppress(FileExistsError):
                    os.mkdir(name, FOLDER_MODE, dir_fd=descriptor)
                inner = os.open(name, OPEN_FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise _through_a_link(error, path) from None
            raise
        return Folder(descriptor, os.path.dirname(path))

    def _below(self, path: str) -> list[str]:
        for root in (self._given, self._real):
            if path.startswith(root.rstrip("/") + "/"):
                names = path[len(root) :].strip("/").split("/")
                if ".." not in names and "." not in names and "" not in names:
                    return names
        text = f"{path} does not lie below the storage path {self._given}"
        raise OSError(errno.EPERM, text)

    def _open_root(self) -> int:
        try:
            descriptor = os.open(self._real, OPEN_FOLDER)
        except FileNotFoundError:  # removed during the run
            make_folders(self._real)
            descriptor = os.open(self._real, OPEN_FOLDER)
        except OSError as error:
            raise _through_a_link(error, self._real) from None
        if os.fstat(descriptor).st_uid not in self._owners:
            os.close(descriptor)
            text = f"the storage path {self._given} belongs to another user by now"
            raise OSError(errno.EPERM, text)
        return descriptor


def _through_a_link(error: OSError, path: str) -> OSError:
    """``O_NOFOLLOW`` with ``O_DIRECTORY`` says ENOTDIR of a link, or ELOOP."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return error
    text = f"{path} cannot be used: a link or a file stands where a folder should"
    return OSError(error.errno, text)


def supports_locks(path: str) -> bool:
    """Whether ``flock`` works on files in the folder ``path``, which is writable."""
    name = f".{secrets.token_hex(16)}.lock"
    with Storage(path).using(os.path.join(path, name)) as folder:
        try:
            os.close(folder.lock(name))
        except LockUnsupported:
            return False
        finally:
            folder.remove(name)
    return True
