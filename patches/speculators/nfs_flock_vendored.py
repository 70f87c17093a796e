"""On NFS the transfer that speculators 0.7 carries with it cannot take its lock."""

from __future__ import annotations

from dataclasses import replace

from packaging.specifiers import SpecifierSet

from . import nfs_flock as original

WAIT = replace(
    original.PATCH.targets[0],
    name="speculators._vendor.hs_connectors.transfer.wait_for_lock",
    aliases=(),
)

PATCH = replace(
    original.PATCH,
    id="nfs-flock-vendored",
    summary="waiting for a sample fails on NFS, in the vendored transfer",
    affects=SpecifierSet(">=0.7.0,<0.8.0"),  # 0.7.0.2 is told by its look
    targets=(WAIT,),
)
