"""Requests that were aborted leave samples in the Mooncake store for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target


def request_finished(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Nobody is told of the key, so nothing is to be stored under it.

    The workers report a request without a pending save as done, which frees its
    blocks as before.
    """
    delayed, parameters = wrapped(*args, **kwargs)
    request = args[0] if args else kwargs["request"]
    if request.status.name != "FINISHED_ABORTED":
        return delayed, parameters
    instance._pending_saves.pop(request.request_id, None)
    return delayed, None


PATCH = Patch(
    id="aborted-sample-fills-store",
    summary="samples of aborted requests stay in the Mooncake store",
    why=(
        "Under load the store fills up and drops samples that the trainer has not "
        "read yet: a client gave up, and the connector stores the request's sample "
        "all the same, incomplete (or an error marker, where it was never scheduled), "
        "under a key that nobody knows and so nobody deletes."
    ),
    see=(
        "Cancel requests and compare the number of keys that mooncake_master reports "
        "before and after: it has grown. With the patch it has not."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.8.0,<=0.9.0"),
    targets=(
        Target(
            name=(
                "hs_connectors.mooncake_hidden_states_connector"
                ".MooncakeHiddenStatesConnector.request_finished"
            ),
            wrapper=request_finished,
            forms=(
                Fingerprint(
                    parameters=("self", "request", "block_ids"),
                    contains=("self._pending_saves[req_id] = PendingSave(",),
                    lacks=("FINISHED_ABORTED", "is_aborted"),
                ),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when=OPEN,
)
