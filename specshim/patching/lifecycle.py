"""Arm, apply, undo: a patch is there wholly or not at all."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Any

from specshim import imports, process_report
from specshim._vllm_facts import EXTRACT
from specshim.patching import gate, ledger
from specshim.patching.containment import contained, strict
from specshim.patching.declaration import Patch, Target, split_name
from specshim.patching.form import form_of
from specshim.patching.ledger import LEDGER

logger = logging.getLogger("vllm.specshim")


class PatchRefused(RuntimeError):
    """SPECSHIM_STRICT=1, and a patch does not fit the installed release."""


def arm(patches: Iterable[Patch]) -> None:
    """Have each patch applied as soon as all its targets are imported.

    Where they are already, that is now. Arming again tries again, and changes
    nothing for a patch that is in place.
    """
    for patch in patches:
        known = LEDGER.entries.get(patch.id)
        if known is None or known.state == ledger.UNDONE:
            LEDGER.note(patch.id, ledger.ARMED, "Waits for the import of its target.")
        modules = [module for target in patch.targets for module in target.modules]
        for module in dict.fromkeys(modules):
            imports.when_imported(module, partial(_on_import, patch), key=patch.id)
    process_report.publish()


def _on_import(patch: Patch, module: ModuleType) -> None:
    with contained(patch.id):
        if all(_is_settled(target, module.__name__) for target in patch.targets):
            apply(patch)
            process_report.publish()


def _is_settled(target: Target, imported: str) -> bool:
    """Whether ``target`` is imported, or no module yet to come can have it.

    ``imported`` is the module whose import has just run to its end.
    """
    from specshim.patching.binding import find

    def is_loaded(module: str) -> bool:
        return module == imported or imports.is_loaded(module)

    found = find(target)
    if found is not None and is_loaded(split_name(found.place)[0]):
        return True
    return all(is_loaded(m) or not imports.exists(m) for m in target.modules)


def disarm(patches: Iterable[Patch]) -> None:
    """Take the patches out, and wait for their targets no longer."""
    for patch in patches:
        undo(patch.id)
        imports.drop(patch.id)
        with LEDGER.lock:
            if patch.id in LEDGER.entries:
                LEDGER.note(patch.id, ledger.UNDONE, "Not for this process.")


def apply(patch: Patch) -> gate.Verdict | None:
    """Put ``patch`` in place if it belongs here, on modules that are imported.

    Returns the verdict, None where a variable switched the patch off.

    Raises:
        PatchRefused: the verdict is REFUSED, under SPECSHIM_STRICT=1.
        Exception: whatever went wrong while setting; all is as before then.
    """
    with LEDGER.lock:
        off = gate.switched_off(patch, os.environ)
        if off:
            LEDGER.note(patch.id, ledger.SWITCHED_OFF, off)
            return None
        if LEDGER.is_installed(patch.id) and _in_place(patch):
            return gate.Verdict(gate.APPLY, LEDGER.entries[patch.id].reason)
        undo(patch.id)
        LEDGER.attempts.add(patch.id)
        verdict = verdict_here(patch)
        if verdict.kind == gate.APPLY:
            _set(patch)
        before = LEDGER.entries.get(patch.id)
        LEDGER.note(patch.id, _STATES[verdict.kind], verdict.reason)
        news = LEDGER.entries[patch.id] != before
    if verdict.kind == gate.REFUSED and strict():
        raise PatchRefused(verdict.reason)
    if news:
        loud = verdict.kind == gate.REFUSED and _concerns_this_process(patch)
        level = logging.WARNING if loud else logging.DEBUG
        logger.log(level, "specshim: %s %s. %s", patch.id, verdict.kind, verdict.reason)
    return verdict


def _concerns_this_process(patch: Patch) -> bool:
    """False for a hook in a process that, by its command line, extracts nothing.

    A patch or aid is armed in the processes of servers that use it, whereas every vLLM
    process imports the modules of the hooks, and most extract no hidden states.
    """
    if patch.kind != "hook":
        return True
    return any(EXTRACT in argument for argument in sys.argv)


def undo(patch_id: str) -> None:
    """Take the patch out; nothing happens where it is not in."""
    with LEDGER.lock:
        if patch_id not in LEDGER.installed:
            return
        installed = LEDGER.installed.pop(patch_id)
        left = [b for b in reversed(installed) if not b.restore()]
        reason = "Taken out."
        if left:
            reason = "Inert: others have wrapped over it, so it passes calls through."
        LEDGER.note(patch_id, ledger.UNDONE, reason)


def original(patch_id: str, index: int = 0) -> Any:
    """What the installed patch put aside at its target number ``index``."""
    return LEDGER.installed[patch_id][index].original


def undo_all() -> None:
    """Undo every installed patch, the last one first."""
    for patch_id in reversed(list(LEDGER.installed)):
        undo(patch_id)


def verdict_here(patch: Patch) -> gate.Verdict:
    """The verdict on ``patch`` against the modules imported in this process."""
    from specshim.patching.binding import find

    forms = {}
    for target in patch.targets:
        found = find(target)
        if found is not None:
            forms[found.place] = form_of(found.raw)
    return gate.judge(patch, _imported_version(patch.package), forms)


_STATES = {
    gate.APPLY: ledger.APPLIED,
    gate.NOT_NEEDED: ledger.NOT_NEEDED,
    gate.REFUSED: ledger.REFUSED,
}


def _set(patch: Patch) -> None:
    from specshim.patching.binding import bind

    bindings = [bind(patch.id, target) for target in patch.targets]
    done = []
    try:
        for binding in bindings:
            done.append(binding)
            binding.set()
    except BaseException:
        for binding in reversed(done):
            binding.restore()
        raise
    LEDGER.installed[patch.id] = tuple(bindings)


def _in_place(patch: Patch) -> bool:
    """False where a target's module was imported anew since the patch went in."""
    from specshim.patching.binding import find

    owners = {id(b.owner) for b in LEDGER.installed[patch.id]}
    found = [find(target) for target in patch.targets]
    return all(f is not None and id(f.owner) in owners for f in found)


def _imported_version(package: str) -> str | None:
    """What the imported package says, else what is installed under that name."""
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str) and version != "unknown":
        return version
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
