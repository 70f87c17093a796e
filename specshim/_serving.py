"""Which server this process belongs to, and its route; told to its child processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "SPECSHIM_SERVING"
"""``route:pid:start`` of the process that configured a server that extracts. That
process sets it, its engine core and workers inherit it; nobody else should set it."""

RAY_PREFIXES: Final = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
PREFIX: Final = "SPECSHIM"


@dataclass(frozen=True)
class Server:
    """A server that extracts: ``route`` ("tap" or "cache"), and its frontend.

    ``started`` tells the frontend from other processes of its ``pid``, which another
    container or a later time may have.
    """

    route: str
    pid: int
    started: str

    @property
    def is_this_process(self) -> bool:
        return self.pid == os.getpid() and self.started == started(self.pid)


def server() -> Server | None:
    """The server that this process belongs to, None where nothing is extracted."""
    route, _, process = os.environ.get(VARIABLE, "").partition(":")
    pid, _, start = process.partition(":")
    return Server(route, int(pid), start) if route and pid.isdecimal() else None


def on_cache_route() -> bool:
    """Whether this process belongs to a server that extracts on the cache route."""
    found = server()
    return found is not None and found.route == "cache"


def announce(route: str | None) -> None:
    """Tell the processes that will be started from here; None: it does not extract."""
    if route is None:
        os.environ.pop(VARIABLE, None)
        return
    os.environ[VARIABLE] = f"{route}:{os.getpid()}:{started(os.getpid())}"
    known = getattr(sys.modules.get("vllm.envs"), "environment_variables", {})
    if RAY_PREFIXES in known:  # vLLM warns of variables that it does not know
        os.environ[RAY_PREFIXES] = ray_prefixes(os.environ)


def ray_prefixes(environ: Mapping[str, str]) -> str:
    """The value of RAY_PREFIXES with which Ray's workers get our variables too."""
    listed = [item.strip() for item in environ.get(RAY_PREFIXES, "").split(",")]
    listed = [item for item in listed if item]
    return ",".join(listed if PREFIX in listed else [*listed, PREFIX])


def started(pid: int) -> str:
    """When process ``pid`` started, in the kernel's own units; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    # The name in parentheses may hold anything; start time is field 22.
    return text.rpartition(")")[2].split()[19]
