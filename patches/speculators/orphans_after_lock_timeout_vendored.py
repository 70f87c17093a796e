"""As orphans-after-lock-timeout, in the transfer that speculators 0.7 carries."""

from __future__ import annotations

from dataclasses import replace

from packaging.specifiers import SpecifierSet

from ..hs_connectors import orphans_after_lock_timeout as original

PATCH = replace(
    original.PATCH,
    id="orphans-after-lock-timeout-vendored",
    summary="a slow sample is lost and its files stay, in the vendored transfer",
    affects=SpecifierSet(">=0.7.0,<0.8.0"),
    targets=tuple(
        replace(target, name=f"speculators._vendor.{target.name}")
        for target in original.PATCH.targets
    ),
    remove_when="speculators>=0.8.0",
)
