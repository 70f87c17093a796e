"""Carries the plan out where every vLLM server configures its engine.

``EngineArgs.create_engine_config`` is what ``vllm serve``, headless nodes, several
API servers, data parallel ranks and ``LLM`` all call, in every release.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from specshim import _serving, process_report
from specshim.patching import Fingerprint, Patch, Target, arm, disarm, original
from specshim.patching.catalogue import aids, patches

if TYPE_CHECKING:
    from specshim.planning import LaunchPlan

logger = logging.getLogger("vllm.specshim")


def create_engine_config(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Plan for servers that extract; any other call goes straight to vLLM.

    Raises:
        ValueError: the plan refuses the request; the message is its sentence.
    """
    from specshim.engine_args import extracts, with_changes

    if not extracts(instance):
        _extract_nothing()
        return wrapped(*args, **kwargs)
    decided = decide(instance)
    if decided.refusal:
        raise ValueError(f"specshim: {decided.refusal}")
    if decided.route == "none":
        _extract_nothing()
        return wrapped(*args, **kwargs)
    problem = transport_problem(instance, decided)
    if problem is not None:
        raise ValueError(f"specshim: {problem}")
    if _speaks_for_the_server(instance) or _serving.server() is None:
        _serving.announce(decided.route)
    process_report.sweep()
    process_report.publish()
    arm(aids("vllm"))
    if decided.route == "cache":
        arm(patches("vllm"))
    try:
        if not decided.changes:
            return wrapped(*args, **kwargs)
        # Several API servers plan again from the same arguments, so the plan goes
        # onto a copy, and vLLM's own method runs on that copy.
        changed = with_changes(instance, decided.changes)
        method = original(REROUTE.id).__get__(changed, type(changed))
        return method(*args, **kwargs)
    finally:
        # Not before: some releases set up logging in create_engine_config.
        if _speaks_for_the_server(instance):
            _announce(decided)


def _extract_nothing() -> None:
    """Leave the processes of a server that extracts nothing as they are.

    This process may have been started by one that extracts, and have its patches. One
    that has configured such a server itself keeps them: its engine may run here.
    """
    server = _serving.server()
    if server is not None and not server.is_this_process:
        disarm(patches("vllm") + aids("vllm"))
    _serving.announce(None)


def decide(engine_args: Any) -> LaunchPlan:
    """The plan for these EngineArgs in this environment."""
    from specshim.detect import ModelNotFound, detect_environment
    from specshim.detect.hub import model_of_options
    from specshim.engine_args import given_options
    from specshim.planning import Request, plan, plan_unread

    environment = detect_environment()
    options = given_options(engine_args)
    request = Request(source="engine_args", options=options)
    try:
        model = model_of_options(engine_args.model, options, download=True)
    except ModelNotFound as error:
        return plan_unread(environment, request, str(error))
    return plan(environment, model, request)


def transport_problem(engine_args: Any, decided: LaunchPlan) -> str | None:
    """Why samples could not leave; asked where nobody has asked yet, once a server."""
    from specshim._backends import BACKEND_KEY, FILE, backend_of
    from specshim._multi import tap_child
    from specshim._plan_types import as_mapping
    from specshim._transport import backend_problem
    from specshim.engine_args import given_options, with_changes

    if not _speaks_for_the_server(engine_args):
        return None
    if decided.route == "tap" and not decided.changes:
        return None  # by the launcher, which has asked
    options = given_options(with_changes(engine_args, decided.changes))
    kv = as_mapping(options.get("kv_transfer_config")) or {}
    kv = dict(tap_child(kv) or kv)
    extra = as_mapping(kv.get("kv_connector_extra_config")) or {}
    connectors = kv.get("kv_connector"), kv.get("kv_connector_module_path")
    backend = extra.get(BACKEND_KEY) or backend_of(*connectors) or FILE
    return backend_problem(str(backend), extra)


def _speaks_for_the_server(engine_args: Any) -> bool:
    """False in the API servers that a parent started: the parent has said it.

    vLLM numbers them from 0 and the parent -1; a lone server is number 0 of 1.
    """
    count = getattr(engine_args, "_api_process_count", 1)
    rank = getattr(engine_args, "_api_process_rank", 0)
    return count == 1 or rank < 0


def _announce(decided: LaunchPlan) -> None:
    did = "rerouted hidden-state extraction to" if decided.changes else "kept"
    logger.info("specshim %s the %s route: %s", did, decided.route, decided.reason)
    for warning in decided.warnings:
        logger.warning("specshim: %s", warning)


REROUTE = Patch(
    id="reroute",
    kind="hook",
    summary="plans for servers that extract hidden states, when they are configured",
    why=(
        "A server started without specshim's launcher would extract by the stock "
        "road; here its arguments are complete and no engine exists yet."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<=0.32.0"),
    targets=(
        Target(
            name="vllm.engine.arg_utils.EngineArgs.create_engine_config",
            wrapper=create_engine_config,
            forms=(Fingerprint(parameters=("self", "usage_context", "headless")),),
        ),
    ),
    processes=("frontend",),
)

HOOKS = (REROUTE,)
