"""A request aborted before it was scheduled kills the engine with a KeyError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target


def request_finished(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Nothing was computed, so there is nothing to save and no block to keep."""
    request = args[0] if args else kwargs["request"]
    if request.request_id not in instance._request_filenames:
        return False, None
    return wrapped(*args, **kwargs)


PATCH = Patch(
    id="abort-before-schedule",
    summary="an aborted request that was never scheduled stops the engine",
    why=(
        "Under load the engine dies with KeyError in request_finished: a client "
        "gave up on a queued request, and the connector looks up the file name "
        "that it only chooses once a request is scheduled."
    ),
    see=(
        "The log of an engine that died has KeyError, raised in request_finished of "
        "the connector. With the patch a request that is cancelled while it waits is "
        "gone, and the others are answered."
    ),
    upstream=("vllm#56841",),
    affects=SpecifierSet(">=0.24.0,<0.31.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.request_finished",
            wrapper=request_finished,
            forms=(
                Fingerprint(
                    parameters=("self", "request", "block_ids"),
                    contains=("self._request_filenames.pop(req_id)",),
                ),
            ),
            fixed=Fingerprint(
                parameters=("self", "request", "block_ids"),
                contains=("self._request_filenames.pop(req_id, None)",),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when="vllm>=0.31.0",
)
