"""On NFS the transfer that speculators 0.7 carries with it cannot take its lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import Patch, Target

from .nfs_flock import FAULTY, REPAIRED


def wait_for_lock(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Wait through a descriptor that can write."""
    return _trainer.wait_on_nfs(wrapped, args, kwargs)


PATCH = Patch(
    id="nfs-flock-vendored",
    summary="waiting for a sample fails on NFS, in the vendored transfer",
    why=(
        "Every sample fails with OSError (Bad file descriptor) where the hidden states "
        "lie on NFS: the client asks for an exclusive lock on a lock file that it "
        "opened for reading."
    ),
    upstream=("speculators#948",),
    affects=SpecifierSet(">=0.7.0,<0.8.0"),  # 0.7.0.2 is told by its look
    targets=(
        Target(
            name="speculators._vendor.hs_connectors.transfer.wait_for_lock",
            wrapper=wait_for_lock,
            forms=(FAULTY,),
            fixed=REPAIRED,
        ),
    ),
    processes=("trainer",),
    rung="replace method",
    why_not_lower="The mode of the descriptor is chosen inside the function.",
    remove_when="speculators>=0.8.0",
)
