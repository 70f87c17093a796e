"""Aids at the ends of requests and servers, so that nothing is left behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from packaging.specifiers import SpecifierSet

from specshim import _serving
from specshim.patching import Fingerprint, Patch, Target

CONNECTOR: Final = "specshim.tap.connector"

GRACE_SECONDS: Final = 10.0
"""For what is written when a server is told to end. vLLM gives its workers 8 to 9 s of
them; rows are at most ``max_backlog_seconds`` (4) old."""


def finish_requests(
    wrapped: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Abort requests; of those that have ended already, take the samples back.

    The frontend aborts what its client left before it saw the end of it, so nobody
    has been told of the sample.
    """
    connector = sys.modules.get(CONNECTOR)
    if connector is None:
        return wrapped(*args, **kwargs)
    ids, rest, options = _request_ids(args, kwargs, "request_ids")
    if ids is None:  # all that run
        return wrapped(*args, **kwargs)
    late = [i for i in ids if (r := instance.requests.get(i)) is None or _ended(r)]
    result = wrapped(ids, *rest, **options)
    if late:
        for scheduler in connector.schedulers_here():
            scheduler.withdraw(late)
    return result


async def abort(
    wrapped: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Abort requests; the engine hears of those, too, whose end is already here.

    Only where the caller handles its own cancellation: it waits for the next output,
    so it has not passed the last one on. (A generator that is closed has, perhaps.)
    """
    ids, rest, options = _request_ids(args, kwargs, "request_id")
    left = isinstance(sys.exc_info()[1], asyncio.CancelledError)
    if ids is None or not left or _serving.server() is None:
        await wrapped(*args, **kwargs)
        return
    known = instance.output_processor.request_states
    late = [request_id for request_id in ids if request_id not in known]
    await wrapped(ids, *rest, **options)
    if late:
        await instance.engine_core.abort_requests_async(late)


def _request_ids(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str
) -> tuple[tuple[str, ...] | None, tuple[Any, ...], dict[str, Any]]:
    """The ids, which may come as an iterator, and the other arguments."""
    options = dict(kwargs)
    ids = args[0] if args else options.pop(name, None)
    if ids is not None:
        ids = (ids,) if isinstance(ids, str) else tuple(ids)
    return ids, args[1:], options


def _ended(request: Any) -> bool:
    return bool(request.is_finished())


def shut_down(
    wrapped: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """End the engine's processes, not within the same moment where samples are written.

    vLLM sends SIGTERM and, unless ``--shutdown-timeout`` says otherwise, SIGKILL right
    after it (0.18 and later).
    """
    timeout = args[0] if args else kwargs.get("timeout")
    drains = getattr(instance, "_request_shutdown_timeout", 0)  # its own deadline
    if timeout or drains or _serving.server() is None:
        return wrapped(*args, **kwargs)
    return wrapped(GRACE_SECONDS)


LATE_ABORT = Patch(
    id="tap-late-abort",
    kind="aid",
    summary="takes a sample back whose client left while the answer was on its way",
    why=(
        "An abort that comes after the last step of a request reaches no connector, "
        "and the complete file would lie there for ever."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<=0.33.0"),
    targets=(
        Target(
            name="vllm.v1.core.sched.scheduler.Scheduler.finish_requests",
            wrapper=finish_requests,
            forms=(
                Fingerprint(
                    parameters=("self", "request_ids", "finished_status"),
                    contains=("self.requests.get(",),
                ),
            ),
        ),
    ),
    processes=("engine core",),
)

LATE_CANCEL = Patch(
    id="tap-late-cancel",
    kind="aid",
    summary="tells the engine of a client that left before it saw the end",
    why=(
        "The frontend forgets a request when its last output arrives, and so aborts "
        "nothing where the client leaves before that is passed on."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<=0.33.0"),
    targets=(
        Target(
            name="vllm.v1.engine.async_llm.AsyncLLM.abort",
            wrapper=abort,
            forms=(
                Fingerprint(
                    parameters=("self", "request_id", "internal"),
                    contains=("engine_core.abort_requests_async(",),
                ),
            ),
        ),
    ),
    processes=("frontend",),
)

SHUTDOWN = Patch(
    id="shutdown-grace",
    kind="aid",
    summary="gives a server that is told to end 10 s to complete its samples",
    why=(
        "SIGTERM is followed by SIGKILL at once, so samples whose clients have been "
        "answered are lost."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.18.0,<=0.33.0"),
    targets=(
        Target(
            name="vllm.v1.engine.utils.CoreEngineProcManager.shutdown",
            wrapper=shut_down,
            forms=(
                Fingerprint(parameters=("self", "timeout"), contains=("shutdown(",)),
            ),
        ),
    ),
    processes=("frontend",),
)

AIDS = (LATE_ABORT, LATE_CANCEL, SHUTDOWN)
