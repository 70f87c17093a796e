"""Patches and hooks: declared as data, gated, applied as a transaction, undone."""

from specshim.patching.containment import contained, strict
from specshim.patching.declaration import OPEN, Fingerprint, Form, Patch, Target
from specshim.patching.gate import APPLY, NOT_NEEDED, REFUSED, Verdict, judge
from specshim.patching.ledger import LEDGER
from specshim.patching.lifecycle import (
    PatchRefused,
    apply,
    arm,
    disarm,
    original,
    undo,
    undo_all,
    verdict_here,
)

__all__ = [
    "APPLY",
    "LEDGER",
    "NOT_NEEDED",
    "OPEN",
    "REFUSED",
    "Fingerprint",
    "Form",
    "Patch",
    "PatchRefused",
    "Target",
    "Verdict",
    "apply",
    "arm",
    "contained",
    "disarm",
    "judge",
    "original",
    "strict",
    "undo",
    "undo_all",
    "verdict_here",
]
