"""compat.toml, the one list of the releases that the tests run on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")

ROOT = Path(__file__).parent.parent
COMPAT: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (ROOT / "compat.toml").read_text()
)

READ = [f"{entry['package']}-{entry['version']}" for entry in COMPAT.pop("sources")]
"""The releases whose code is only read (tests/drift)."""


def releases(package: str) -> list[str]:
    """The tested releases of ``package``, oldest first."""
    return [entry["version"] for entry in COMPAT.get(package, [])]


def runnable(package: str) -> list[str]:
    """Those of them in whose environment servers start."""
    return [entry["version"] for entry in COMPAT.get(package, []) if "on" not in entry]


def each_run(package: str, chosen: Collection[str] = ()) -> list[Any]:
    """The same as parameters, all but the chosen ones `extended`.

    By default those with an environment of their own are chosen.
    """
    entries = [entry for entry in COMPAT[package] if "on" not in entry]
    own = [entry["version"] for entry in entries if "beside" not in entry]
    return [
        version
        if version in (chosen or own)
        else pytest.param(version, marks=pytest.mark.extended)
        for version in (entry["version"] for entry in entries)
    ]
