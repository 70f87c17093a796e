"""A server as a child process: in a session of its own, stopped with all in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_S = 0.5
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerFailed(Exception):
    """The server did not come up; the message is one sentence."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    grace: float = 20.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """``command`` with its output in ``log``; gone, with its children, on leaving.

    Left by Ctrl-C or SIGTERM, too. The process group is asked with SIGINT, then
    with SIGTERM, each for half of ``grace`` seconds, then killed.
    """
    previous = _terminate_like_exit()
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
            try:
                yield process
            finally:
                _stop(process, grace)
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _terminate_like_exit() -> signal.Handlers | Callable[..., object] | int | None:
    """Make SIGTERM unwind the stack; None where this is not the main thread."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    try:
        return signal.signal(signal.SIGTERM, leave)
    except ValueError:
        return None


def _stop(process: subprocess.Popen[bytes], grace: float) -> None:
    group = process.pid  # of its own session, so the group carries its number
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
            if _gone(process, group, time.monotonic() + grace / 2):
                return
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        process.wait()


def _gone(process: subprocess.Popen[bytes], group: int, deadline: float) -> bool:
    """Whether the process and all of its group ended before the deadline."""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            try:
                os.killpg(group, 0)
            except (ProcessLookupError, PermissionError):
                return True
        time.sleep(0.05)
    return False


def wait_until_healthy(
    process: subprocess.Popen[bytes],
    url: str,
    timeout: float,
    tick: Callable[[float], None] | None = None,
) -> float:
    """Seconds until ``url``/health answered.

    Args:
        timeout: seconds to wait at most.
        tick: called with the seconds waited so far.

    Raises:
        ServerFailed: the process ended, or the time is over.
    """
    start = time.monotonic()
    while True:
        waited = time.monotonic() - start
        if process.poll() is not None:
            raise ServerFailed(
                f"The server ended with exit code {process.returncode} after "
                f"{waited:.0f} s, before it answered."
            )
        if _healthy(url):
            return waited
        if waited > timeout:
            raise ServerFailed(f"The server did not answer within {timeout:g} s.")
        if tick is not None:
            tick(waited)
        time.sleep(_POLL_S)


def _healthy(url: str) -> bool:
    try:
        with _OPENER.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def last_lines(log: Path, count: int = 25) -> list[str]:
    """The end of the log, as text."""
    try:
        return log.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return []
