"""On NFS the client cannot take the lock that it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _trainer
from specshim.patching import Fingerprint, Patch, Target


def wait_for_lock(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Wait through a descriptor that can write."""
    return _trainer.wait_on_nfs(wrapped, args, kwargs)


FAULTY = Fingerprint(
    parameters=("lock_path", "timeout", "poll_interval"),
    contains=("os.open(lock_path, os.O_RDONLY)",),
)
REPAIRED = Fingerprint(contains=("os.open(lock_path, os.O_RDWR)",))

PATCH = Patch(
    id="nfs-flock",
    summary="waiting for a sample fails on NFS",
    why=(
        "Every sample fails with OSError (Bad file descriptor) where the hidden states "
        "lie on NFS: the client asks for an exclusive lock on a lock file that it "
        "opened for reading."
    ),
    see=(
        "Every sample fails with OSError: [Errno 9] Bad file descriptor, and `stat -f "
        "-c %T FOLDER` says nfs. With the patch they are read."
    ),
    upstream=("speculators#948",),
    affects=SpecifierSet(">=0.6.0,<0.8.0"),  # 0.6.0.2, 0.7.0.2: told by their look
    targets=(
        Target(
            name="speculators.data_generation.vllm_client.wait_for_lock",
            wrapper=wait_for_lock,
            forms=(FAULTY,),
            fixed=REPAIRED,
            aliases=("speculators.train.data.wait_for_lock",),
        ),
        Target(
            name="speculators.data_generation.vllm_client.wait_for_lock_async",
            wrapper=wait_for_lock,
            forms=(FAULTY,),
            fixed=REPAIRED,
            aliases=("__main__.wait_for_lock_async",),
        ),
    ),
    processes=("trainer",),
    rung="replace method",
    why_not_lower="The mode of the descriptor is chosen inside the function.",
    remove_when="speculators>=0.8.0",
)
