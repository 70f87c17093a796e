"""No sample is cached where the folder of the cache does not exist yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Make the folder once it is known that samples will be cached in it."""
    wrapped(*args, **kwargs)
    if instance.on_generate == "cache":
        instance.hidden_states_path.mkdir(parents=True, exist_ok=True)


PATCH = Patch(
    id="cache-dir",
    summary="on_generate=cache never creates its folder",
    why=(
        "With on_generate=cache every sample is generated and lost (No such file or "
        "directory), and the run ends as if all were well: nothing creates the folder "
        "that files are moved to."
    ),
    see=(
        "Begin a run with on_generate=cache and a hidden_states_path that does not "
        "exist: it still does not after some steps, and every sample fails with 'No "
        "such file or directory'. With the patch it fills with hs_*.safetensors."
    ),
    upstream=("speculators#743",),
    affects=SpecifierSet(">=0.5.0,<0.7.0"),
    targets=(
        Target(
            name="speculators.train.data.ArrowDataset.__init__",
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=("self", "max_len", "datapath", "hidden_states_path"),
                    contains=("self.on_generate = on_generate",),
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when="speculators>=0.7.0",
)
