"""A request's id, which a client may choose, is taken for a path."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import OPEN, Fingerprint, Patch, Target
from specshim.tap.places import custom_path, file_name, shown

logger = logging.getLogger("vllm.specshim")


def build_connector_meta(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The same, with every name in it one of a file below the storage path."""
    metadata = wrapped(*args, **kwargs)
    storage = instance._storage_path
    for saved in getattr(metadata, "requests", ()):  # up to 0.23
        saved.filename = below(storage, saved.req_id, saved.filename)
    locked = getattr(metadata, "new_req_filenames", {})  # from 0.24 on
    known = instance._request_filenames
    for new in (args[0] if args else kwargs["scheduler_output"]).scheduled_new_reqs:
        if new.req_id in known:
            path = below(storage, new.req_id, known[new.req_id])
            known[new.req_id] = path
            if new.req_id in locked:
                locked[new.req_id] = path
    return metadata


def below(storage: str, request_id: str, path: str) -> str:
    """``path``, or one below ``storage`` where it does not lie there."""
    plain = os.path.join(storage, file_name(request_id))
    if path in (plain, os.path.join(storage, f"{request_id}.safetensors")):
        return plain
    try:
        return custom_path(storage, path)
    except ValueError as error:
        name = shown(request_id)
        logger.warning("Request %s: %s; its own path is ignored.", name, error)
        return plain


PATCH = Patch(
    id="request-ids-as-paths",
    summary="a request's id can end the engine, or choose where files are written",
    why=(
        "vLLM takes the id of a request from the header X-Request-Id, and stock "
        "extraction puts it into a path as it is. With a slash in it the file cannot "
        "be opened and the engine ends (up to 0.23), or it is written wherever the "
        "id leads, folders included (from 0.24). With allow_custom_save_path a client "
        "names any file of the machine; it must lie below the storage path now."
    ),
    see=(
        "Send a request with the header X-Request-Id: a/b. Its file lies in a folder "
        "of the request's making, or the engine ends. With the patch it lies in the "
        "storage path itself, under a name without a slash."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<=0.32.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.build_connector_meta",
            wrapper=build_connector_meta,
            forms=(
                Fingerprint(
                    parameters=("self", "scheduler_output"),
                    contains=(
                        'f"{new_req.req_id}.safetensors"',
                        "self._request_filenames[new_req.req_id] = filename",
                    ),
                ),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when=OPEN,
)
