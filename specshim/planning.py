"""plan(): which route, which arguments, which patches, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specshim import _vllm_facts as facts
from specshim._backends import BACKEND_KEY, FILE, backend_of
from specshim._cache_route import cache_route
from specshim._draft import Draft
from specshim._multi import check_children, tap_child
from specshim._plan_types import (
    REMOVE,
    Change,
    LaunchPlan,
    Refused,
    Request,
    as_mapping,
)
from specshim._tap_route import tap_route
from specshim.detect import Environment, ModelFacts

__all__ = ["REMOVE", "Change", "LaunchPlan", "Request", "plan", "plan_unread"]

OFF = "SPECSHIM=0 switches specshim off"


@dataclass(frozen=True)
class _Extraction:
    """Hidden states are asked for; ``layer_ids`` as written, None for the default."""

    layer_ids: Any
    is_tap: bool  # the options already name the tap connector
    foreign: str | None = None  # or a connector that is nobody's we know
    backend: str = FILE  # one of hs_connectors' for its connectors


def plan(environment: Environment, model: ModelFacts, request: Request) -> LaunchPlan:
    """Decide. Imports neither torch nor vLLM, reads no file, raises nothing.

    The plan of options that a plan's changes were applied to has no changes.
    """
    if environment.variables.get("SPECSHIM") == "0":
        return LaunchPlan("none", OFF)
    asked, _ = _asked(environment, request)
    route, reason = asked if asked in facts.ROUTES[1:] else "tap", ""
    draft = Draft(environment, model, request)
    try:
        extraction = _extraction(request)
        if isinstance(extraction, str):
            return LaunchPlan("none", extraction)
        _check_route(asked)
        _check_versions(environment, draft)
        if model.encoder_decoder:
            raise Refused(
                f"{model.name} is an encoder-decoder model, whose hidden states "
                "specshim does not extract; choose a decoder-only model."
            )
        route, reason = _route(environment, extraction, draft)
        draft.foreign, draft.backend = extraction.foreign, extraction.backend
        unsaid = extraction.foreign is not None and extraction.layer_ids is None
        ids = () if unsaid else _layer_ids(model, request, extraction)
        (tap_route if route == "tap" else cache_route)(draft, ids)
    except Refused as refused:
        return LaunchPlan(
            route, reason, warnings=tuple(draft.warnings), refusal=str(refused)
        )
    kinds = ("aid", "hook" if route == "tap" else "patch")
    return LaunchPlan(
        route,
        reason,
        layer_ids=ids,
        changes=tuple(draft.changes),
        patches=tuple(found for found in environment.patches if found.kind in kinds),
        warnings=tuple(draft.warnings),
    )


def plan_unread(environment: Environment, request: Request, why: str) -> LaunchPlan:
    """The plan where the model's config cannot be read: vLLM may know better.

    Stock extraction is left to vLLM with the warning ``why``; the tap, where it is
    asked for, is refused with it.
    """
    if environment.variables.get("SPECSHIM") == "0":
        return LaunchPlan("none", OFF)
    try:
        extraction = _extraction(request)
        if isinstance(extraction, str):
            return LaunchPlan("none", extraction)
        asked, _ = _asked(environment, request)
        _check_route(asked)
        if asked == "tap" or extraction.is_tap:
            raise Refused(f"{why} The tap route cannot do without the model's config.")
    except Refused as refused:
        return LaunchPlan("tap", "", refusal=str(refused))
    reason = "the model's config cannot be read, so the request is left to vLLM"
    return LaunchPlan("cache", reason, warnings=(why,))


def _asked(environment: Environment, request: Request) -> tuple[str, str]:
    """The route that the user asks for, and with what."""
    if request.route != "auto":
        return request.route, "--specshim-route"
    variable = environment.variables.get("SPECSHIM_ROUTE") or "auto"
    return variable, "SPECSHIM_ROUTE"


def _extraction(request: Request) -> _Extraction | str:
    """What is to be extracted, or why the server is left as it is."""
    options = request.options
    kv = as_mapping(options.get("kv_transfer_config"))
    if kv is None and options.get("kv_transfer_config") not in (None, "", {}):
        if request.source == "launcher":
            raise Refused(
                "--kv-transfer-config is not a JSON object; write it as "
                "'{\"kv_connector_extra_config\": {...}}' or leave it out."
            )
        return "kv_transfer_config is not a dict: left to vLLM"
    kv = kv or {}
    child = tap_child(kv)
    if child is not None:
        check_children(kv)
        kv = dict(child)
    method, spec_ids = _speculative(request)
    connector, module = kv.get("kv_connector"), kv.get("kv_connector_module_path")
    is_tap = connector == facts.TAP_CONNECTOR and module in (None, facts.TAP_MODULE)
    is_stock = connector == facts.STOCK_CONNECTOR and module is None
    foreign_method = method not in (None, facts.EXTRACT)
    backend = backend_of(connector, module)
    said = (as_mapping(kv.get("kv_connector_extra_config")) or {}).get(BACKEND_KEY)

    if request.source == "launcher":
        if said not in (None, request.backend):
            raise Refused(
                f"{BACKEND_KEY} in --kv-transfer-config says {said} and "
                f"--hidden-states-backend says {request.backend}; give the backend "
                "once, with --hidden-states-backend."
            )
        backend = request.backend
        if connector is not None and not (is_tap or is_stock):
            raise Refused(
                f"The launcher extracts hidden states, but --kv-transfer-config names "
                f"the connector {connector}; leave kv_connector out, or start that "
                "server with `vllm serve`."
            )
    elif not connector:
        return (
            "extract_hidden_states without a hidden-states connector saves nothing: "
            "left to vLLM"
            if method == facts.EXTRACT
            else "no hidden states are asked for"
        )
    elif is_tap:
        backend = said
    elif not is_stock:
        if method != facts.EXTRACT:
            return f"the connector {connector} is left alone"
        if backend is not None:
            return _Extraction(spec_ids, is_tap=False, backend=backend)
        return _Extraction(spec_ids, is_tap=False, foreign=str(connector))
    elif method != facts.EXTRACT:
        return f"{connector} without the method {facts.EXTRACT}: left to vLLM"

    if foreign_method:
        raise Refused(
            f"Speculative decoding ({method}) and the extraction of hidden states "
            "cannot run in one server; remove the speculative options."
        )
    ids = spec_ids
    if is_tap:
        tapped = _tapped_ids(options.get("additional_config"))
        if tapped is not None and ids is not None and tapped != ids:
            raise Refused(
                f"additional_config names the layers {tapped} and speculative_config "
                f"the layers {ids}; give them once."
            )
        ids = tapped if tapped is not None else ids
    return _Extraction(ids, is_tap, backend=str(backend or FILE))


def _speculative(request: Request) -> tuple[Any, Any]:
    """Method and layer ids of the speculative options; (None, None) without."""
    options = request.options
    given = options.get("speculative_config")
    spec = {k.replace("-", "_"): v for k, v in (as_mapping(given) or {}).items()}
    method = spec.get("method") or options.get("spec_method")
    if method is None and (spec.get("model") or options.get("spec_model")):
        method = "a draft model"
    if method is None and given not in (None, "", {}):
        method = "an unknown method"
    draft = as_mapping(spec.get("draft_model_config")) or {}
    config = as_mapping(draft.get("hf_config")) or {}
    return method, config.get(facts.LAYER_IDS_KEY)


def _tapped_ids(additional_config: Any) -> Any:
    ours = as_mapping((as_mapping(additional_config) or {}).get("specshim")) or {}
    return ours.get("layer_ids")


def _check_route(asked: str) -> None:
    if asked not in facts.ROUTES:
        raise Refused(
            f"The route {asked!r} is unknown; SPECSHIM_ROUTE and --specshim-route "
            f"take {', '.join(facts.ROUTES)}."
        )


def _check_versions(environment: Environment, draft: Draft) -> None:
    if environment.vllm is None:
        raise Refused(
            "vLLM is not installed in this Python environment; run this with the "
            f"python of the environment that has vLLM {facts.OLDEST_NAME} or newer."
        )
    number = facts.release(environment.vllm)
    if number is None:
        draft.warnings.append(
            f"vLLM says no release number ({environment.vllm}): it is planned for "
            "as the newest release."
        )
    elif number < facts.OLDEST:
        raise Refused(
            f"vLLM {environment.vllm} cannot extract hidden states; "
            f"install vLLM {facts.OLDEST_NAME} or newer."
        )


def _route(
    environment: Environment, extraction: _Extraction, draft: Draft
) -> tuple[str, str]:
    asked, by = _asked(environment, draft.request)
    obstacles = "; ".join(tap_obstacles(environment))
    if asked == "cache":
        if extraction.is_tap:
            raise Refused(
                f"{facts.TAP_CONNECTOR} is the connector of the tap route, but {by} "
                "asks for the route cache; drop one of the two."
            )
        return "cache", f"{by} asks for it"
    if extraction.foreign:
        if asked == "tap":
            raise Refused(
                f"The tap route has a connector of its own, but {extraction.foreign} "
                f"is asked for and {by} asks for the route tap; drop one of the two."
            )
        return "cache", f"the connector {extraction.foreign} is kept"
    if not obstacles:
        return "tap", (
            f"{by} asks for it"
            if asked == "tap"
            else "rows are recorded at the decoder layers and never enter the KV "
            f"cache, which works for every kind of model ({draft.model.summary})"
        )
    if asked == "tap" or extraction.is_tap:
        raise Refused(
            f"The tap route cannot work here: {obstacles}; use the route cache "
            "(--specshim-route cache)."
        )
    draft.warnings.append(
        f"The tap route cannot work here ({obstacles}): the stock extraction through "
        "the KV cache is used instead."
    )
    return "cache", f"the tap route cannot work here ({obstacles})"


def tap_obstacles(environment: Environment) -> Iterator[str]:
    """What keeps the tap route from working here, as ends of sentences."""
    if environment.missing_tap_hooks:
        missing = ", ".join(environment.missing_tap_hooks)
        yield f"vLLM {environment.vllm} lacks {missing}"
    for hook in environment.patches:
        if hook.kind == "hook" and hook.verdict in ("REFUSED", "OFF"):
            yield f"the hook {hook.id} is out: {hook.reason.rstrip('.')}"


def _layer_ids(
    model: ModelFacts, request: Request, extraction: _Extraction
) -> tuple[int, ...]:
    """The layers to extract, in order, duplicates kept."""
    last = model.num_hidden_layers
    written = extraction.layer_ids
    if request.layer_ids is not None:
        wanted = list(request.layer_ids)
        if wanted and request.include_last_layer and last not in wanted:
            wanted.append(last)
        if written is not None and list(_sequence(written)) != wanted:
            raise Refused(
                f"--target-layer-ids asks for the layers {wanted}, but the vLLM "
                f"options name {written}; give them once."
            )
    elif written is not None:
        wanted = list(_sequence(written))
    elif request.source == "launcher":
        wanted = facts.default_layer_ids(last)
        if any(not 0 <= layer <= last for layer in wanted):
            raise Refused(
                f"The default layer ids {wanted} do not fit a model of {last} layers; "
                f"choose with --target-layer-ids, from 0 (embeddings) to {last}."
            )
    else:
        raise Refused(
            "The request names no layers; give them as "
            f"draft_model_config.hf_config.{facts.LAYER_IDS_KEY} in "
            "speculative_config."
        )
    if not wanted:
        raise Refused(
            f"The list of layer ids is empty; give at least one from 0 to {last}."
        )
    for layer in wanted:
        if not isinstance(layer, int) or isinstance(layer, bool):
            raise Refused(f"The layer id {layer!r} is not an integer.")
        if not 0 <= layer <= last:
            raise Refused(
                f"The layer id {layer} is out of range: {model.name} has {last} "
                f"layers, so ids go from 0 (embeddings) to {last} (last layer)."
            )
    return tuple(wanted)


def _sequence(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    raise Refused(f"The layer ids {value!r} are not a list of integers.")
