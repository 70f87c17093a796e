"""As mislabelled-served-files, in the loader of speculators 0.6."""

from __future__ import annotations

from dataclasses import replace

from packaging.specifiers import SpecifierSet

from . import mislabelled_served_files_vendored as vendored

(LOAD,) = vendored.PATCH.targets

PATCH = replace(
    vendored.PATCH,
    id="mislabelled-served-files-in-the-dataset",
    affects=SpecifierSet(">=0.6.0,<0.7.0"),
    targets=(replace(LOAD, name="speculators.train.data._maybe_load_hs_file"),),
    remove_when="speculators>=0.7.0",
)
