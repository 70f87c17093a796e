"""Which route the server of this process takes, told to its child processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "SPECSHIM_SERVING"
"""Set by the process that configures a server that extracts, inherited by its engine
core and workers. Nobody else should set it."""

RAY_PREFIXES: Final = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
PREFIX: Final = "SPECSHIM"


def route() -> str | None:
    """ "tap" or "cache" where this process belongs to a server that extracts."""
    return os.environ.get(VARIABLE) or None


def announce(route: str | None) -> None:
    """Tell the processes that will be started from here; None: it does not extract."""
    if route is None:
        os.environ.pop(VARIABLE, None)
        return
    os.environ[VARIABLE] = route
    known = getattr(sys.modules.get("vllm.envs"), "environment_variables", {})
    if RAY_PREFIXES in known:  # vLLM warns of variables that it does not know
        os.environ[RAY_PREFIXES] = ray_prefixes(os.environ)


def ray_prefixes(environ: Mapping[str, str]) -> str:
    """The value of RAY_PREFIXES with which Ray's workers get our variables too."""
    listed = [item.strip() for item in environ.get(RAY_PREFIXES, "").split(",")]
    listed = [item for item in listed if item]
    return ",".join(listed if PREFIX in listed else [*listed, PREFIX])
