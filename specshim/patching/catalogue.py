"""Every declaration there is, by the package that it touches."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module, resources

from specshim.patching.declaration import Patch

PACKAGES = ("vllm", "speculators", "hs_connectors")

# Modules that declare hooks, each in a tuple HOOKS. They must be cheap to import:
# every process that imports the package pays for it.
HOOK_MODULES: Mapping[str, tuple[str, ...]] = {
    "vllm": ("specshim.reroute", "specshim.tap.hooks"),
}

AID_MODULES: Mapping[str, tuple[str, ...]] = {"vllm": ("specshim.tap.endings",)}


def hooks(package: str) -> tuple[Patch, ...]:
    """The hook points of specshim in ``package``."""
    return tuple(
        hook
        for module in HOOK_MODULES.get(package, ())
        for hook in import_module(module).HOOKS
    )


def aids(package: str) -> tuple[Patch, ...]:
    """What the processes of a server that extracts have besides, on either route."""
    return tuple(
        aid
        for module in AID_MODULES.get(package, ())
        for aid in import_module(module).AIDS
    )


def patches(package: str) -> tuple[Patch, ...]:
    """The patches for ``package``: PATCH of each module in its folder, by name."""
    home = f"specshim.patches.{package}"
    names = sorted(
        info.name
        for folder in [resources.files(home)]
        for info in pkgutil.iter_modules([str(folder)])
    )
    return tuple(import_module(f"{home}.{name}").PATCH for name in names)


def declarations(package: str) -> tuple[Patch, ...]:
    """Hooks first, then patches: what ``import specshim`` arms for ``package``."""
    return hooks(package) + aids(package) + patches(package)


def everything() -> tuple[Patch, ...]:
    """All declarations, package by package."""
    return tuple(p for package in PACKAGES for p in declarations(package))
