"""The tap route: what it sets, removes, warns of and refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specshim import _vllm_facts as facts
from specshim._draft import Draft, check_backend, kv_transfer
from specshim._multi import loading
from specshim._plan_types import Refused, as_mapping, as_size, as_true
from specshim.detect.plugin import plugin_allowed

CHUNKED_VARIABLE = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"


def _pass_config(*names: str) -> Callable[[Draft], bool]:
    def given(draft: Draft) -> bool:
        compilation = as_mapping(draft.options.get("compilation_config")) or {}
        passes = as_mapping(compilation.get("pass_config")) or {}
        return any(as_true(passes.get(name)) for name in names)

    return given


def _more_than_one(option: str) -> Callable[[Draft], bool]:
    return lambda draft: as_size(draft.options.get(option)) > 1


def _on(option: str) -> Callable[[Draft], bool]:
    return lambda draft: draft.on(option)


TAP_REFUSES: tuple[tuple[str, Callable[[Draft], bool]], ...] = (
    (
        "prefill context parallelism (--prefill-context-parallel-size)",
        _more_than_one("prefill_context_parallel_size"),
    ),
    ("dual batch overlap (--enable-dbo)", _on("enable_dbo")),
    ("micro-batching (--ubatch-size)", _more_than_one("ubatch_size")),
    ("--kv-sharing-fast-prefill", _on("kv_sharing_fast_prefill")),
    ("sequence parallelism (--enable-hc-sp)", _on("enable_hc_sp")),
    (
        "the sequence-parallelism pass (pass_config.enable_sp)",
        _pass_config("enable_sp", "enable_sequence_parallelism"),
    ),
    (
        "the async tensor-parallel pass (pass_config.fuse_gemm_comms)",
        _pass_config("fuse_gemm_comms", "enable_async_tp"),
    ),
)
"""What splits or drops rows of a forward pass, so that a layer's output is not one
row per token. Names of the passes: fuse_gemm_comms and enable_sp up to 0.31, the
longer ones in older configs."""


def tap_route(draft: Draft, ids: tuple[int, ...]) -> None:
    """The stock route's options replaced by specshim's connector and layer taps."""
    check_backend(draft)
    variables = draft.environment.variables
    if not plugin_allowed(variables):
        raise Refused(
            f"VLLM_PLUGINS={variables['VLLM_PLUGINS']!r} keeps specshim's plugin out "
            "of vLLM's workers; add specshim to that comma-separated list, or unset it."
        )
    for what, given in TAP_REFUSES:
        if given(draft):
            raise Refused(
                f"The tap route cannot record layers under {what} yet; leave it out."
            )
    where = "Mooncake" if draft.backend == "mooncake" else "the storage path"
    draft.set(
        "kv_transfer_config",
        kv_transfer(
            draft,
            {
                "kv_connector": facts.TAP_CONNECTOR,
                "kv_connector_module_path": facts.TAP_MODULE,
            },
        ),
        f"specshim's connector writes the recorded rows to {where}, past the KV cache",
    )
    draft.set(
        "additional_config",
        _additional_config(draft, ids),
        "tells the workers which layers to record, and keeps graphs that were "
        "compiled without the taps from being reused (vLLM hashes this option)",
    )
    for option in ("speculative_config", "spec_method", "spec_model", "spec_tokens"):
        draft.remove(
            option, "the tap needs no draft model and no cache-only layer beside it"
        )
    _prefix_caching_off(draft)
    _hybrid_manager(draft)
    others = loading(as_mapping(draft.options.get("kv_transfer_config")) or {})
    if others:
        draft.warnings.append(
            f"{', '.join(others)} may load KV cache that was computed earlier: samples "
            "of such requests fail with a reason, because those rows are not computed "
            'again; give it kv_role "kv_producer" if it is only to save.'
        )


def _additional_config(draft: Draft, ids: tuple[int, ...]) -> dict[str, Any]:
    given = draft.options.get("additional_config")
    user = as_mapping(given)
    if user is None and given not in (None, ""):
        raise Refused(
            "additional_config is not a JSON object, so the layer ids cannot be added "
            "to it; write it as a dict."
        )
    user = user or {}
    ours = {"tap": facts.TAP_VERSION, "layer_ids": list(ids)}
    theirs = as_mapping(user.get("specshim"))
    if theirs is None and user.get("specshim") is not None:
        raise Refused(
            "The key specshim in --additional-config belongs to specshim; leave it out."
        )
    theirs = theirs or {}
    for key, value in ours.items():
        said = theirs.get(key, value)
        if (list(said) if isinstance(said, tuple) else said) != value:
            raise Refused(
                f"--additional-config says specshim.{key} = {said}, but this request "
                f"needs {value}; leave the key specshim out."
            )
    return {**user, "specshim": {**theirs, **ours}}


def _prefix_caching_off(draft: Draft) -> None:
    if draft.unset("enable_prefix_caching"):
        draft.set(
            "enable_prefix_caching",
            False,
            "rows of a cached prefix are not computed again, so they could not be "
            "recorded",
        )
        events = as_mapping(draft.options.get("kv_events_config")) or {}
        if as_true(events.get("enable_kv_cache_events")):
            draft.warnings.append(
                "Prefix caching is switched off, so KV events have nothing to report; "
                "ask for --enable-prefix-caching if you need them."
            )
    elif draft.on("enable_prefix_caching"):
        draft.warnings.append(
            "You asked for prefix caching: samples that share a cached prefix fail "
            "with a reason, because the rows of that prefix are not computed again."
        )


def _manager_blocker(draft: Draft) -> tuple[str, bool] | None:
    """Why the hybrid manager is not switched on, and whether vLLM would refuse it."""
    if draft.environment.platform not in facts.HYBRID_MANAGER_PLATFORMS:
        return f"the platform {draft.environment.platform} does not support it", True
    if "chunked_attention" in draft.model.layer_kinds:
        allowed = draft.environment.variables.get(CHUNKED_VARIABLE, "1")
        return "the model has chunked local attention", allowed == "0"
    if as_mapping(draft.options.get("kv_events_config")) is not None:
        if draft.before(facts.KV_EVENTS_WITH_HYBRID_MANAGER):
            return "kv_events_config is given", True
        if not draft.stateful:
            return "kv_events_config is given", False
    return None


def _hybrid_manager(draft: Draft) -> None:
    """Keep the hybrid KV cache manager on where vLLM would switch it off."""
    option, flag = "disable_hybrid_kv_cache_manager", "hybrid-kv-cache-manager"
    if not draft.model.hybrid:
        return
    blocker = _manager_blocker(draft)
    costs = "sliding-window and chunked layers then use as much KV cache as full ones"
    if draft.on(option):
        if draft.stateful:
            raise Refused(
                f"--disable-{flag} keeps a {draft.model.summary} model from starting: "
                "vLLM cannot unify its states with its KV cache; leave the flag out."
            )
        draft.warnings.append(f"--disable-{flag} wastes memory: {costs}.")
        return
    given = not draft.unset(option)
    if blocker and blocker[1] and given:
        raise Refused(
            f"vLLM refuses --no-disable-{flag} here, because {blocker[0]}; "
            "leave the flag out."
        )
    if given:
        return
    switched_off = draft.before(facts.CONNECTOR_DECLARES_HMA)
    if blocker and (switched_off or blocker[1]):
        if draft.stateful:
            raise Refused(
                f"This {draft.model.summary} model needs vLLM's hybrid KV cache "
                f"manager, which is off here, because {blocker[0]}; "
                "remove what is in its way."
            )
        draft.warnings.append(
            f"vLLM's hybrid KV cache manager stays off, because {blocker[0]}: {costs}."
        )
    elif blocker and "chunked_attention" in draft.model.layer_kinds:
        draft.warnings.append(
            "vLLM keeps its hybrid KV cache manager on for chunked local attention: "
            "that saves KV cache and, as vLLM itself warns, costs latency; "
            f"{CHUNKED_VARIABLE}=0 switches it off."
        )
    elif switched_off:
        draft.set(
            option,
            False,
            f"the model is hybrid ({draft.model.summary}), and vLLM before 0.22 "
            "switches the hybrid KV cache manager off for any connector",
        )
