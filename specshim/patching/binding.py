"""Setting and restoring one attribute, so that undo leaves no trace."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import wrapt

from specshim.patching.declaration import Target, split_name
from specshim.patching.ledger import LEDGER


class _BoundWrapper(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
    """A bound method that pickles by name, as the one it stands for does."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (self._self_instance, self.__wrapped__.__name__)


class _Wrapper(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A wrapper that pickles by name: spawned processes get their own."""

    __bound_function_wrapper__ = _BoundWrapper

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__qualname__


@dataclass(frozen=True)
class Binding:
    """One target in place: what was there, and what is there now.

    ``own`` is False where the owner inherits the attribute: there undo deletes,
    since setting the inherited function back would pin it on the subclass.
    """

    target: Target
    owner: Any
    attribute: str
    original: Any
    replacement: Any
    own: bool

    def set(self) -> None:
        setattr(self.owner, self.attribute, self.replacement)
        self._rebind_aliases(self.original, self.replacement)

    def restore(self) -> bool:
        """Put back what was there; False where somebody else has set it since."""
        # Modules imported after set() may have copied the replacement.
        self._rebind_aliases(self.replacement, self.original)
        if vars(self.owner).get(self.attribute) is not self.replacement:
            return False
        if self.own:
            setattr(self.owner, self.attribute, self.original)
        else:
            delattr(self.owner, self.attribute)
        return True

    def _rebind_aliases(self, old: Any, new: Any) -> None:
        for alias in self.target.aliases:
            module_name, attribute = split_name(alias)
            module = sys.modules.get(module_name)
            if module is not None and vars(module).get(attribute) is old:
                setattr(module, attribute, new)


@dataclass(frozen=True)
class Found:
    """Where a target is: under which of its names, in what, and as what is stored."""

    place: str
    owner: Any
    attribute: str
    raw: Any


def find(target: Target) -> Found | None:
    """``target`` at the first of its places that has it, None where it is missing.

    Looks only into modules that are imported. The attribute comes as it is stored
    (a staticmethod object, not the function), from a base class if inherited. Of
    several places, one that merely imports the function from another is passed over.
    """
    for place in target.places:
        found = _at(place)
        if found and (not target.moved or _defined_in_its_module(found)):
            return found
    return None


def _at(place: str) -> Found | None:
    module, qualname = split_name(place)
    owner: Any = sys.modules.get(module)
    *path, attribute = qualname.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    if owner is None:
        return None
    raw = inspect.getattr_static(owner, attribute, None)
    return None if raw is None else Found(place, owner, attribute, raw)


def _defined_in_its_module(found: Found) -> bool:
    module, _ = split_name(found.place)
    whole = found.owner if inspect.isclass(found.owner) else found.raw
    return bool(getattr(whole, "__module__", module) == module)


def bind(patch_id: str, target: Target) -> Binding:
    """The binding that would put ``target.wrapper`` in place; sets nothing yet.

    Raises:
        LookupError: the target is not there.
    """
    found = find(target)
    if found is None:
        raise LookupError(f"{target.name} does not exist")
    # The wrapper turns itself off once the ledger has forgotten the patch: where
    # somebody wrapped over it and it cannot be taken out, it passes calls through.
    wrapper = _Wrapper(
        found.raw, target.wrapper, enabled=partial(LEDGER.is_installed, patch_id)
    )
    own = found.attribute in vars(found.owner)
    return Binding(target, found.owner, found.attribute, found.raw, wrapper, own)
