"""A report about a request that is gone already stops the engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import EXTRACT
from specshim.patching import OPEN, Fingerprint, Patch, Target

logger = logging.getLogger("vllm.specshim")

FIELDS = ("finished_recving", "finished_sending")


def update_from_kv_xfer_finished(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Leave such reports out: the request's blocks are free, nobody waits for it.

    That holds for both asserts. A request that loads from outside stays known until
    its load is reported, so an unknown one has been reported before.
    """
    speculative = instance.vllm_config.speculative_config
    if getattr(speculative, "method", None) != EXTRACT:
        return wrapped(*args, **kwargs)
    output = args[0] if args else kwargs["kv_connector_output"]
    known = instance.requests
    kept = {}
    for field in FIELDS:
        reported = getattr(output, field) or set()
        stale = {request_id for request_id in reported if request_id not in known}
        if stale:
            logger.debug("specshim: %s of %s came late", field, sorted(stale))
            kept[field] = (reported - stale) or None
    return wrapped(replace(output, **kept) if kept else output)


PATCH = Patch(
    id="stale-finish-assert",
    summary="a late report about a finished request stops the engine",
    why=(
        "The engine dies with AssertionError in _update_from_kv_xfer_finished: a "
        "worker reports a request whose blocks are free already. From 0.24 to 0.30 "
        "the stock connector does so for every request that was aborted before it was "
        "scheduled, once abort-before-schedule lets the engine live that long; later, "
        "connectors that inherit from it do, if their other ranks report as well."
    ),
    see=(
        "The log of an engine that died has AssertionError, raised in "
        "_update_from_kv_xfer_finished of the scheduler. With the patch the report is "
        "left out, and the others are answered."
    ),
    upstream=("vllm#43226", "vllm#46240", "vllm#46304", "vllm#48821", "vllm#53079"),
    affects=SpecifierSet(">=0.17.0,<=0.32.0"),
    targets=(
        Target(
            name="vllm.v1.core.sched.scheduler.Scheduler._update_from_kv_xfer_finished",
            wrapper=update_from_kv_xfer_finished,
            forms=(
                Fingerprint(
                    parameters=("self", "kv_connector_output"),
                    contains=("assert req_id in self.requests",),
                ),
            ),
            fixed=Fingerprint(
                parameters=("self", "kv_connector_output"),
                contains=("kv_connector_output.finished_sending",),
                lacks=("assert req_id in self.requests",),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when=OPEN,
)
