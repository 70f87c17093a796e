"""The transfer backends of hs_connectors: what they are called and what they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

BACKEND_KEY = "hidden_states_backend"
"""In the tap connector's kv_connector_extra_config: the backend that samples leave by;
without it they are files as stock vLLM writes them."""

FILE = "file"


@dataclass(frozen=True)
class Backend:
    """A backend of hs_connectors, its vLLM connector, and the first release with it."""

    name: str
    connector: str
    module: str
    since: str


HS_BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "fp8",
            "FP8HiddenStatesConnector",
            "hs_connectors.fp8_hidden_states_connector",
            "0.9.0",
        ),
        Backend(
            "mooncake",
            "MooncakeHiddenStatesConnector",
            "hs_connectors.mooncake_hidden_states_connector",
            "0.8.0",
        ),
    )
}
BACKENDS = (FILE, *HS_BACKENDS)


def backend_of(connector: Any, module: Any) -> str | None:
    """The backend whose connector this is; None for any other connector."""
    for backend in HS_BACKENDS.values():
        if (connector, module) == (backend.connector, backend.module):
            return backend.name
    return None


def lacking(name: str, installed: str | None) -> str | None:
    """A sentence where hs_connectors ``installed`` has no backend ``name``."""
    backend = HS_BACKENDS[name]
    advice = (
        f'install it next to vLLM with `pip install "hs_connectors>={backend.since}"`.'
    )
    if installed is None:
        return (
            f"The backend {name} comes from hs_connectors, which is not installed in "
            f"this environment; {advice}"
        )
    try:
        old = Version(installed) < Version(backend.since)
    except InvalidVersion:  # a source tree that says no number may be any release
        return None
    if not old:
        return None
    return (
        f"The backend {name} came with hs_connectors {backend.since}, but "
        f"{installed} is installed in this environment; {advice}"
    )
