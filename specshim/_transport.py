"""Whether a backend's transport is there, asked before vLLM touches a device."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

MASTER_SECONDS = 10.0
"""How long a Mooncake master may take to start beside the server."""

DEFAULT_MASTER = "127.0.0.1:50051"
"""Of hs_connectors' MooncakeStoreConfig."""

_IMPORT = "from mooncake.store import MooncakeDistributedStore"
_PACKAGE = "mooncake-transfer-engine"


def backend_problem(
    backend: str, settings: Mapping[str, Any], *, seconds: float = MASTER_SECONDS
) -> str | None:
    """One sentence where samples could not leave by ``backend``, None where they can.

    Args:
        backend: the backend's name; only mooncake needs anything beyond its code.
        settings: the connector's kv_connector_extra_config.
        seconds: how long to wait for the Mooncake master.
    """
    if backend != "mooncake":
        return None
    config = settings.get("mooncake")
    known = config if isinstance(config, Mapping) else {}
    address = known.get("master_server_address", DEFAULT_MASTER)
    return _import_problem() or _master_problem(str(address), seconds)


def _import_problem() -> str | None:
    """In a process of its own: the package brings threads and native libraries."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"exit status {done.returncode}"
    return (
        f"The backend mooncake cannot load {_PACKAGE} ({reason}); install that "
        "package, or its variant for this machine, next to vLLM, and the system "
        "libraries it needs (libibverbs)."
    )


def _master_problem(address: str, seconds: float) -> str | None:
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return None  # a cluster's address, which only Mooncake can resolve
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
        except (OSError, OverflowError) as error:
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            reason = getattr(error, "strerror", None) or error
            return (
                f"No Mooncake master answers at {address} ({reason}); start "
                "mooncake_master there, or name another with --mooncake-master."
            )
        return None
