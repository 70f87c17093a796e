"""Models that the end-to-end tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specshim.tiny import ensure_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny model by its name in specshim.tiny."""
    folder = tmp_path_factory.mktemp("models")
    return lambda name: ensure_tiny_model(name, folder)
