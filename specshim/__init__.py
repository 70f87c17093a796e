"""Correct and fast hidden-state extraction on stock vLLM and speculators.

Importing arms post-import hooks for vllm, speculators and hs_connectors, unless
SPECSHIM=0 is set; nothing else happens before one of them is imported.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING, Any

from specshim import imports as _imports
from specshim._require import RequirementNotMet, require
from specshim._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = [
    "RequirementNotMet",
    "__version__",
    "install",
    "require",
    "status",
    "uninstall",
]

_PACKAGES = ("vllm", "speculators", "hs_connectors")


def install() -> None:
    """Arm every hook and patch; apply those whose target is imported already.

    May be called any number of times. Does nothing under SPECSHIM=0. Importing
    specshim, and vLLM's loading of the plugin, arm all but the patches of vLLM;
    those follow in the processes of a server that extracts on the cache route.

    Raises:
        specshim.patching.PatchRefused: a patch or hook does not fit what is
            imported, under SPECSHIM_STRICT=1; so does any other failure.
    """
    _watch(_arm_all)


def uninstall() -> None:
    """Undo every patch and drop every hook; ``install()`` starts again."""
    _imports.forget()
    from specshim.patching import undo_all

    undo_all()


def status() -> dict[str, Any]:
    """What is armed, applied, refused or failed in this process, as plain data.

    Keys: ``version``, ``pid``, ``active`` (SPECSHIM=0 is not set), ``watched``
    (modules whose import is awaited or was seen), ``attempts``, ``installed``,
    ``failures``, and ``patches``: state and reason by id.
    """
    from specshim.patching import LEDGER

    return {
        "version": __version__,
        "pid": _os.getpid(),
        "active": _os.environ.get("SPECSHIM") != "0",
        "watched": sorted(_imports.watched()),
        "attempts": sorted(LEDGER.attempts),
        "installed": list(LEDGER.installed),
        "failures": dict(LEDGER.failures),
        "patches": {
            patch_id: {"state": entry.state, "reason": entry.reason}
            for patch_id, entry in sorted(LEDGER.entries.items())
        },
    }


def _watch(hook: Callable[[ModuleType], None]) -> None:
    if _os.environ.get("SPECSHIM") == "0":
        return
    for package in _PACKAGES:
        _imports.when_imported(package, hook, key="specshim")


def _arm_all(module: ModuleType) -> None:
    from specshim.patching import arm, contained
    from specshim.patching.catalogue import declarations

    with contained(f"hooks for {module.__name__}"):
        arm(declarations(module.__name__))


def _arm_needed(module: ModuleType) -> None:
    """Of vLLM, a server that extracts nothing must find every function untouched."""
    from specshim import _serving

    if module.__name__ != "vllm" or _serving.on_cache_route():
        _arm_all(module)
        return
    from specshim.patching import arm, contained
    from specshim.patching.catalogue import aids, hooks

    needed = hooks(module.__name__)
    if _serving.server() is not None:
        needed += aids(module.__name__)
    with contained(f"hooks for {module.__name__}"):
        arm(needed)


def _install_needed() -> None:
    _watch(_arm_needed)


def _install_at_import() -> None:
    """vLLM swallows what importing a plugin raises; register() raises it again."""
    try:
        _install_needed()
    except Exception as error:
        from specshim.patching.containment import logger

        logger.error(
            "specshim: not everything is in place (%s: %s), and SPECSHIM_STRICT=1 asks "
            "for that: vLLM will be stopped.",
            type(error).__name__,
            error,
        )


def _checkout() -> list[str]:
    """In a checkout patches/ lies beside this package, not in it (see setup.py)."""
    here = _os.path.dirname(__file__)
    root = _os.path.dirname(here)
    beside = _os.path.isfile(_os.path.join(root, "patches", "__init__.py"))
    inside = _os.path.isdir(_os.path.join(here, "patches"))
    return [root] if beside and not inside else []


__path__ += _checkout()
_install_at_import()
