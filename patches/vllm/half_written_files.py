"""A failed write leaves a torn sample under the name that the client was told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._sample_files import STOCK, locked, remove, whole_file, write_through
from specshim.patching import Fingerprint, Patch, Target

logger = logging.getLogger("vllm.specshim")


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Its writer threads write whole files."""
    wrapped(*args, **kwargs)
    write_through(instance, write_whole)


def write_whole(
    write: Callable[..., None],
    tensors: dict[str, Any],
    event: Any,
    filename: str,
    lock_fd: int | None,
) -> None:
    """The lock is released once the file is there whole, or is not there at all."""
    with locked(lock_fd):
        try:
            with whole_file(filename) as temporary:
                write(tensors, event, temporary, None)
        except Exception as error:
            logger.error(
                "No hidden states in %s, because the file could not be written (%s); "
                "is the disk full?",
                filename,
                error,
            )
            if lock_fd is not None:
                remove(f"{filename}.lock")
            raise


PATCH = Patch(
    id="half-written-files",
    summary="a write that fails leaves part of a file under the final name",
    why=(
        "Training stops at 'Error while deserializing header', or a file cannot be "
        "opened: the disk was full, and what had been written of the sample stays "
        "under the path that the client was told."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.22.0,<=0.32.0"),
    targets=(
        Target(
            name=f"{STOCK}.ExampleHiddenStatesConnector.__init__",
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
    remove_when="vllm>=0.34.0",
)
