"""As mislabelled-served-files, in the transfer that speculators 0.7 carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer

from ..hs_connectors import mislabelled_served_files as original


def load_hs_file(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Check the header of what was loaded; here nobody deletes what is refused."""
    return _trainer.load_named(wrapped, args, kwargs, leftover=True)


(LOAD,) = original.PATCH.targets

PATCH = replace(
    original.PATCH,
    id="mislabelled-served-files-vendored",
    affects=SpecifierSet(">=0.7.0,<0.8.0"),
    targets=(
        replace(LOAD, name=f"speculators._vendor.{LOAD.name}", wrapper=load_hs_file),
    ),
    remove_when="speculators>=0.8.0",
)
