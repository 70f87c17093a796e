"""Post-import hooks that can be taken back; costs nothing until a watched import.

The hooks live in one finder on ``sys.meta_path``. It is ours rather than wrapt's
because ``import specshim`` has to stay cheap, and because ``forget()`` must leave
``sys.meta_path`` as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

Hook = Callable[[ModuleType], None]


def when_imported(name: str, hook: Hook, *, key: str) -> None:
    """Call ``hook(module)`` after each import of ``name``, at once if it is there.

    A hook of the same ``key`` takes the place of the earlier one. A module that is
    still executing counts as not yet imported.
    """
    _watcher().hooks.setdefault(name, {})[key] = hook
    if is_loaded(name):
        hook(sys.modules[name])


def drop(key: str) -> None:
    """Drop the hooks of this key."""
    for finder in sys.meta_path:
        if isinstance(finder, _Watcher):
            for hooks in finder.hooks.values():
                hooks.pop(key, None)


def is_loaded(name: str) -> bool:
    """Whether module ``name`` is imported and has run to its end."""
    module = sys.modules.get(name)
    if module is None:
        return False
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


def exists(name: str) -> bool:
    """Whether module ``name`` is imported or lies in its package; imports nothing."""
    path = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        package = ".".join(parts[:count])
        module = sys.modules.get(package)
        if module is not None:
            path = getattr(module, "__path__", [])
            continue
        spec = PathFinder.find_spec(package, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations or []
    return True


def watched() -> tuple[str, ...]:
    """The names of the modules that have a hook."""
    return tuple(
        name
        for finder in sys.meta_path
        if isinstance(finder, _Watcher)
        for name in finder.hooks
    )


def forget() -> None:
    """Drop all hooks and leave ``sys.meta_path``."""
    for finder in [f for f in sys.meta_path if isinstance(f, _Watcher)]:
        finder.hooks.clear()
        sys.meta_path.remove(finder)


def _watcher() -> _Watcher:
    for finder in sys.meta_path:
        if isinstance(finder, _Watcher):
            return finder
    watcher = _Watcher()
    sys.meta_path.insert(0, watcher)
    return watcher


class _Watcher:
    """A finder that lets the others find, and puts its hooks behind the loader."""

    def __init__(self) -> None:
        self.hooks: dict[str, dict[str, Hook]] = {}

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec


class _Loader:
    """The real loader, with the hooks run after the module's own code."""

    def __init__(self, loader: Any, watcher: _Watcher) -> None:
        self._loader = loader
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for hook in tuple(self._watcher.hooks.get(module.__name__, {}).values()):
            hook(module)
