"""The ledger: what was armed, applied, refused or failed in this process.

The only module-level mutable state of specshim.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specshim.patching.binding import Binding

ARMED = "armed"  # a hook waits for the import of the target's module
APPLIED = "applied"
NOT_NEEDED = "not needed"
REFUSED = "refused"
SWITCHED_OFF = "switched off"
FAILED = "failed"
UNDONE = "undone"


@dataclass(frozen=True)
class Entry:
    """What happened last to one patch, and the sentence that says why."""

    state: str
    reason: str


@dataclass
class Ledger:
    """One process's books. ``attempts`` and ``installed`` are two sets on purpose:
    a patch that was tried is not yet one that is there."""

    entries: dict[str, Entry] = field(default_factory=dict)
    attempts: set[str] = field(default_factory=set)
    installed: dict[str, tuple[Binding, ...]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def is_installed(self, patch_id: str) -> bool:
        return patch_id in self.installed

    def note(self, patch_id: str, state: str, reason: str) -> None:
        self.entries[patch_id] = Entry(state, reason)


LEDGER = Ledger()
