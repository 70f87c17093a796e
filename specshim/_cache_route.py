"""The cache route: stock extraction, with what this vLLM needs to keep it right."""

from __future__ import annotations

from typing import Any

from specshim import _vllm_facts as facts
from specshim._backends import FILE
from specshim._draft import Draft, check_backend, kv_transfer
from specshim._plan_types import Refused, as_mapping, as_size
from specshim.detect.plugin import plugin_allowed


def cache_route(draft: Draft, ids: tuple[int, ...]) -> None:
    """Stock extraction, with what this vLLM needs to start it and keep it right."""
    check_backend(draft)
    variables = draft.environment.variables
    if not plugin_allowed(variables):
        draft.warnings.append(
            f"VLLM_PLUGINS={variables['VLLM_PLUGINS']!r} keeps specshim's plugin out: "
            "vLLM's faults are not patched; add specshim to that comma-separated list."
        )
    if draft.foreign:
        return  # its needs are its own; only vLLM's faults are ours to mend
    if draft.request.source == "launcher":
        _stock_arguments(draft, ids)
    if draft.backend != FILE and draft.before(facts.CONNECTOR_DECLARES_HMA):
        raise Refused(
            f"The connector of the backend {draft.backend} needs vLLM 0.22 or newer, "
            "whose stock connector it builds on; use the route tap "
            "(--specshim-route tap)."
        )
    _stock_can_start(draft)
    if draft.backend != "mooncake":  # whose copy reads whole block tables at the end
        _stock_saves_right(draft)
    _align_needs_chunked_prefill(draft)
    if draft.environment.platform == "cpu" and not _mended_for_the_cpu(draft):
        draft.warnings.append(
            "Stock extraction fails on the CPU where specshim's patches for it do not "
            "apply, and before vLLM 0.20 in any case; use the route tap."
        )
    if as_size(draft.options.get("pipeline_parallel_size")) > 1:
        draft.warnings.append(
            "Stock extraction is not known to start with pipeline parallelism."
        )


def _stock_saves_right(draft: Draft) -> None:
    if draft.before(facts.STOCK_REFUSES_CHUNKED_PREFILL):
        if not _mended(draft, "chunk-tail-stale"):
            _chunked_prefill_off(draft)
    elif draft.before(facts.STOCK_SAVES_AT_FINISH):
        _chunked_prefill_off(draft)
        _stock_prefix_caching_off(draft)
    elif (
        draft.stateful
        and facts.release(draft.environment.vllm or "") == facts.STOCK_HYBRID_ZEROS
        and not _mended(draft, "hybrid-zero-states")
    ):
        draft.warnings.append(
            "The stock connector of vLLM 0.24 saves all-zero states for "
            f"{draft.model.summary} models (fixed in 0.25); use the route tap."
        )


def _align_needs_chunked_prefill(draft: Draft) -> None:
    """Prefix caching of layer states caches them at the ends of chunks.

    The scripts of speculators 0.6 and 0.7 always switch chunked prefill off, and newer
    releases of vLLM switch prefix caching on by themselves (speculators#564, #976).
    """
    option = "enable_chunked_prefill"
    off = not draft.unset(option) and not draft.on(option)
    if not (off and draft.stateful and draft.unset("enable_prefix_caching")):
        return
    draft.set(
        "enable_prefix_caching",
        False,
        f"prefix caching on a {draft.model.summary} model needs chunked prefill, which "
        "is switched off",
    )


def _mended_for_the_cpu(draft: Draft) -> bool:
    """Each fault of the CPU's stock road is patched here, or is none of this vLLM's."""
    verdicts = {
        patch.verdict
        for patch in draft.environment.patches
        if patch.id in facts.CPU_PATCHES
    }
    none_left = bool(verdicts) and verdicts <= {"APPLY", "NOT_NEEDED"}
    return none_left and not draft.before(facts.STOCK_ON_THE_CPU)


def _stock_arguments(draft: Draft, ids: tuple[int, ...]) -> None:
    """What the script of speculators passes."""
    for option in ("spec_method", "spec_model", "spec_tokens"):
        draft.remove(option, "--speculative-config says it")
    draft.set(
        "speculative_config",
        _speculative_config(draft, ids),
        "asks vLLM for the hidden states of these layers",
    )
    if draft.backend == FILE:
        kv = kv_transfer(draft, {"kv_connector": facts.STOCK_CONNECTOR})
    else:
        kv = _backend_kv_transfer(draft)
    whose = "stock" if draft.backend == FILE else "hs_connectors'"
    draft.set("kv_transfer_config", kv, f"the {whose} connector saves them")


def _speculative_config(draft: Draft, ids: tuple[int, ...]) -> dict[str, Any]:
    given = as_mapping(draft.options.get("speculative_config")) or {}
    user = {key.replace("-", "_"): value for key, value in given.items()}
    model = as_mapping(user.pop("draft_model_config", None)) or {}
    config = as_mapping(model.get("hf_config")) or {}
    return {
        **facts.extraction(ids),
        **user,
        "draft_model_config": {
            **model,
            "hf_config": {**config, facts.LAYER_IDS_KEY: list(ids)},
        },
    }


def _backend_kv_transfer(draft: Draft) -> dict[str, Any]:
    backend, built = draft.backend, draft.request.backend_config
    user = as_mapping(draft.options.get("kv_transfer_config")) or {}
    assert built is not None  # check_backend has looked
    if user.get("kv_connector") is not None:
        raise Refused(
            f"--hidden-states-backend {backend} and the kv_connector in "
            "--kv-transfer-config contradict each other; drop one of the two."
        )
    extra = as_mapping(user.get("kv_connector_extra_config")) or {}
    theirs = as_mapping(built.get("kv_connector_extra_config")) or {}
    return {**built, **user, "kv_connector_extra_config": {**theirs, **extra}}


def _stock_can_start(draft: Draft) -> None:
    option, flag = "disable_hybrid_kv_cache_manager", "hybrid-kv-cache-manager"
    without_hma = draft.before(facts.CONNECTOR_DECLARES_HMA)
    if draft.stateful and without_hma:
        raise Refused(
            f"Stock extraction cannot start a {draft.model.summary} model before vLLM "
            "0.22, whose connector has no hybrid KV cache manager; use the route tap "
            "(--specshim-route tap)."
        )
    if draft.stateful and draft.on(option):
        raise Refused(
            f"--disable-{flag} keeps a {draft.model.summary} model from starting; "
            "leave the flag out."
        )
    if without_hma and not draft.unset(option) and not draft.on(option):
        raise Refused(
            f"--no-disable-{flag} contradicts the stock connector before vLLM 0.22, "
            "which does not support it; leave the flag out or use the route tap."
        )


def _chunked_prefill_off(draft: Draft) -> None:
    insists = not draft.before(facts.STOCK_REFUSES_CHUNKED_PREFILL)
    if draft.unset("enable_chunked_prefill"):
        draft.set(
            "enable_chunked_prefill",
            False,
            "the stock connector of vLLM 0.22 and 0.23 refuses to start with it"
            if insists
            else "the stock connector before vLLM 0.22 loses the last rows of a "
            "prompt that is prefilled in chunks",
        )
    elif draft.on("enable_chunked_prefill"):
        if insists:
            raise Refused(
                "--enable-chunked-prefill contradicts the stock connector of vLLM 0.22 "
                "and 0.23, which refuses to start with it; leave the flag out or use "
                "the route tap."
            )
        draft.warnings.append(
            "You asked for chunked prefill: the stock connector before vLLM 0.22 "
            "loses the last rows of a prompt that is prefilled in chunks."
        )


def _stock_prefix_caching_off(draft: Draft) -> None:
    mended = _mended(draft, "prefix-cache-cross-request")
    if mended and not draft.stateful:
        return
    shifted = (
        "the stock connector of vLLM 0.22 and 0.23 saves rows of other requests for "
        "a prompt with a cached prefix"
    )
    needs_chunks = (
        f"Prefix caching on a {draft.model.summary} model needs chunked prefill, which "
        "the stock connector of vLLM 0.22 and 0.23 refuses"
    )
    if draft.unset("enable_prefix_caching"):
        why = needs_chunks[0].lower() + needs_chunks[1:] if mended else shifted
        draft.set("enable_prefix_caching", False, why)
    elif draft.on("enable_prefix_caching"):
        if draft.stateful:
            raise Refused(
                f"{needs_chunks}; leave --enable-prefix-caching out or use the route "
                "tap."
            )
        draft.warnings.append(f"You asked for prefix caching, but {shifted}.")


def _mended(draft: Draft, patch_id: str) -> bool:
    """Whether the server's processes will have that patch of ours in place."""
    return plugin_allowed(draft.environment.variables) and any(
        found.id == patch_id and found.verdict == "APPLY"
        for found in draft.environment.patches
    )
