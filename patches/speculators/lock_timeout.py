"""Samples are given up after ten seconds, while the server still writes them."""

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


_LOOK = Fingerprint(
    parameters=("lock_path", "timeout", "poll_interval"), contains=("=10.0",)
)

PATCH = Patch(
    id="lock-timeout",
    summary="a sample that takes the server more than 10 s to write is lost",
    why=(
        "Under load samples fail with TimeoutError and their files stay on the disk: "
        "the client waits ten seconds for a file that the server is still writing, and "
        "nobody comes back for it."
    ),
    see=(
        "Samples fail with 'Timed out waiting for lock' after ten seconds. With the "
        "patch they do so after two minutes, and those that the server completes "
        "until then are used."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.6.0,<=0.9.0"),
    targets=(
        Target(
            name="speculators.data_generation.vllm_client.wait_for_lock",
            wrapper=wait_for_lock,
            forms=(_LOOK,),
            aliases=("speculators.train.data.wait_for_lock",),
        ),
        Target(
            name="speculators.data_generation.vllm_client.wait_for_lock_async",
            wrapper=wait_for_lock,
            forms=(_LOOK,),
            aliases=(
                "speculators.cli.generate_offline_data.wait_for_lock_async",
                "__main__.wait_for_lock_async",
            ),
        ),
    ),
    processes=("trainer",),
    remove_when=OPEN,
)
