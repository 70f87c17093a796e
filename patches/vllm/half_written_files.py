"""A failed write leaves its lock file, and with old safetensors part of the sample.

unlabelled-files brings the same writer: to run without it, switch off both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._sample_files import whole_writer
from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import OPEN, Fingerprint, Patch, Target


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Its writer threads write whole files."""
    wrapped(*args, **kwargs)
    whole_writer(instance)


PATCH = Patch(
    id="half-written-files",
    summary="a write that fails leaves a lock file, or part of the sample",
    why=(
        "After the disk was full, lock files stay beside samples that are missing: "
        "that is what was seen with safetensors 0.8, which itself removes what it had "
        "written. Before 0.8 part of a sample can stay under its path, and a reader "
        "that takes no lock can meet one that is being written."
    ),
    see=(
        "With the storage on a small tmpfs that runs full, lock files stay for "
        "samples that do not exist. With the patch nothing of them stays, and the log "
        "says 'No hidden states in' and their paths."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.22.0,<=0.32.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.__init__",
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=("self", "vllm_config", "role", "kv_cache_config"),
                    contains=("self._executor = ThreadPoolExecutor(",),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when=OPEN,
)
