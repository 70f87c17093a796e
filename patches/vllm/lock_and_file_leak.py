"""Aborted requests leave lock files and samples that nobody will ever fetch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._sample_files import remove
from specshim._vllm_facts import STOCK_CLASS, STOCK_MODULE
from specshim.patching import OPEN, Fingerprint, Patch, Target

LEFT = "_specshim_left"  # of the scheduler's half, and of a step's metadata


def request_finished(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Of what nobody will fetch nothing is saved; the worker is told to sweep."""
    request = args[0] if args else kwargs["request"]
    delayed, parameters = wrapped(*args, **kwargs)
    path = (parameters or {}).get("hidden_states_path")
    if path is None or not _is_lost(instance, request) or not _is_heard(instance):
        return delayed, parameters
    vars(instance).setdefault(LEFT, {})[request.request_id] = path
    if _saves_at_the_end(instance):
        instance._pending_saves.pop(request.request_id, None)
        # Up to 0.30 every worker reports every finished request, so the scheduler has
        # to wait for that; from 0.31 on only what was saved is reported.
        delayed = delayed and instance.get_finished_count() is None
    return delayed, parameters


def _is_lost(instance: Any, request: Any) -> bool:
    """Whether a request was aborted and no client can want its sample.

    To the engine a stop string is an abort too. The client is told no path then, but
    may have chosen it; up to 0.23 it is that of the request's id, and the sample is
    written by the time that the prompt is computed.
    """
    from vllm.v1.request import RequestStatus

    if request.status != RequestStatus.FINISHED_ABORTED:
        return False
    whole = request.num_computed_tokens >= request.num_prompt_tokens
    if not _saves_at_the_end(instance):  # preempted, it starts again from 0
        return not whole and not request.num_output_tokens
    chosen = (request.kv_transfer_params or {}).get("hidden_states_path")
    return not whole or chosen is None


def _is_heard(instance: Any) -> bool:
    """Whether the worker gets the metadata of this patch, not a subclass's own."""
    kinds = type(instance).__mro__
    owner = next(kind for kind in kinds if "build_connector_meta" in vars(kind))
    return owner.__module__ == STOCK_MODULE


def build_connector_meta(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Tell the worker with the next step."""
    metadata = wrapped(*args, **kwargs)
    left = vars(instance).pop(LEFT, None)
    if left:
        setattr(metadata, LEFT, left)
    return metadata


def start_load_kv(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The first that a connector hears of a step, with a forward or without."""
    for request_id, path in getattr(instance._connector_metadata, LEFT, {}).items():
        _sweep(instance, request_id, path)
    return wrapped(*args, **kwargs)


def _saves_at_the_end(instance: Any) -> bool:
    """True from 0.24 on; before, the states are saved while the request runs."""
    return hasattr(instance, "_pending_saves")


def _sweep(instance: Any, request_id: str, path: str) -> None:
    if _saves_at_the_end(instance):
        descriptor = instance._lock_fds.pop(request_id, None)
        if descriptor is not None:
            remove(f"{path}.lock")
            os.close(descriptor)
        return

    def files(_: Future[None] | None = None) -> None:
        remove(path)
        remove(f"{path}.lock")

    writing = getattr(instance, "_req_futures", {}).get(request_id)
    if writing is None:
        files()
    else:
        writing.add_done_callback(files)


PATCH = Patch(
    id="lock-and-file-leak",
    summary="aborted requests leave files behind that nobody removes",
    why=(
        "The storage fills with .lock files and samples: a client that gives up on a "
        "request was never told of the path, yet the sample is written, of a half "
        "computed prompt too, and its lock file stays. A stop string counts as an "
        "abort. What stays: whole samples under a path that the client chose and, up "
        "to 0.23, all that are written before the abort."
    ),
    see=(
        "Cancel requests, wait until the server is idle, and list the storage: there "
        "are .lock files, and samples whose path no answer has named. With the patch "
        "there are none but those that are named under Symptom."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<=0.32.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.request_finished",
            wrapper=request_finished,
            forms=(
                Fingerprint(
                    parameters=("self", "request", "block_ids"),
                    contains=(
                        "self._request_filenames.pop(req_id",
                        "hidden_states_path",
                    ),
                ),
            ),
        ),
        Target(
            name=f"{STOCK_CLASS}.build_connector_meta",
            wrapper=build_connector_meta,
            forms=(
                Fingerprint(
                    parameters=("self", "scheduler_output"),
                    contains=("meta = ExampleHiddenStatesConnectorMetadata()",),
                ),
            ),
        ),
        Target(
            name=f"{STOCK_CLASS}.start_load_kv",
            wrapper=start_load_kv,
            forms=(Fingerprint(parameters=("self", "args", "kwargs")),),
        ),
    ),
    processes=("engine core", "worker"),
    remove_when=OPEN,
)
