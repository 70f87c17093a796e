"""A sample that the server was slow to write is lost, and its files stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import OPEN, Fingerprint, Patch, Target


def wait_for_lock(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Wait as long as for the server's answer, unless the caller says how long."""
    return _trainer.wait_longer(wrapped, args, kwargs)


def delete(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Remove file and lock file; what the server still writes, at a later call."""
    return _trainer.delete_when_free(wrapped, instance, args, kwargs)


PATCH = Patch(
    id="orphans-after-lock-timeout",
    summary="a slow sample is lost and its files stay on the disk",
    why=(
        "Under load samples fail with TimeoutError and the disk fills with files and "
        "lock files: the trainer waits ten seconds for a file that the server is still "
        "writing, deletes what is not there yet, and never comes back."
    ),
    see=(
        "List the storage after samples have failed with TimeoutError: their files "
        "and .lock files are there, and stay. With the patch the trainer waits two "
        "minutes, and removes what came later when it deletes another sample."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.7.0,<=0.9.0"),
    targets=(
        Target(
            name="hs_connectors.transfer.wait_for_lock",
            wrapper=wait_for_lock,
            forms=(
                Fingerprint(
                    parameters=("lock_path", "timeout", "poll_interval"),
                    contains=("timeout: float = 10.0",),
                ),
            ),
        ),
        Target(
            name="hs_connectors.transfer.FileTransfer.delete",
            wrapper=delete,
            forms=(
                Fingerprint(
                    parameters=("self", "handle"),
                    contains=("Path(handle).unlink()",),
                    lacks=(".lock",),
                ),
            ),
        ),
    ),
    processes=("trainer",),
    remove_when=OPEN,
)
