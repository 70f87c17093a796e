"""Which route is taken, which layers, and the cache route's arguments."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from plan_values import (
    DENSE,
    GDN,
    SLIDING,
    apply,
    changed,
    environment,
    launcher,
    model,
    served,
    stock_options,
)

from specshim.detect import PatchVerdict
from specshim.planning import Request, plan, plan_unread


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "no hidden states are asked for"),
        ({"speculative_config": {"method": "eagle3"}}, "no hidden states"),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector"}}, "left alone"),
        ({"kv_transfer_config": {"kv_connector": "MultiConnector"}}, "left alone"),
        (
            {"kv_transfer_config": {"kv_connector": "ExampleHiddenStatesConnector"}},
            "left to vLLM",
        ),
        (stock_options(kv_transfer_config=None), "saves nothing"),
    ],
)
def test_servers_that_do_not_extract_are_left_alone(
    options: dict[str, Any], reason: str
) -> None:
    decision = served(options)
    assert (decision.route, decision.changes, decision.warnings) == ("none", (), ())
    assert reason in decision.reason
    assert decision.refusal is None


@pytest.mark.parametrize(
    "connector",
    [
        {"kv_connector": "MyConnector"},
        {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_connector_module_path": "mine.connector",
        },
    ],
)
def test_a_connector_of_their_own_is_kept_and_vllm_patched(
    connector: dict[str, str],
) -> None:
    decision = served(stock_options(kv_transfer_config=connector))
    assert (decision.route, decision.changes, decision.refusal) == ("cache", (), None)
    assert f"{connector['kv_connector']} is kept" in decision.reason


def test_a_connector_of_their_own_contradicts_the_tap_route() -> None:
    options = stock_options(kv_transfer_config={"kv_connector": "MyConnector"})
    refusal = served(options, variables={"SPECSHIM_ROUTE": "tap"}).refusal
    assert refusal and "MyConnector is asked for and SPECSHIM_ROUTE" in refusal


def test_switched_off() -> None:
    assert launcher(DENSE, variables={"SPECSHIM": "0"}).route == "none"
    assert served(stock_options(), variables={"SPECSHIM": "0"}).changes == ()


@pytest.mark.parametrize(
    ("route", "variable", "expected"),
    [
        ("auto", None, "tap"),
        ("auto", "", "tap"),
        ("auto", "cache", "cache"),
        ("tap", "cache", "tap"),
        ("cache", "tap", "cache"),
    ],
)
def test_the_flag_goes_before_the_variable(
    route: str, variable: str | None, expected: str
) -> None:
    variables = {} if variable is None else {"SPECSHIM_ROUTE": variable}
    assert launcher(DENSE, route=route, variables=variables).route == expected


def test_missing_hook_points() -> None:
    lacking = environment(missing_tap_hooks=("vllm.v1.worker.X",))
    auto = plan(lacking, DENSE, Request(source="launcher"))
    assert auto.route == "cache"
    assert "vllm.v1.worker.X" in auto.warnings[0]
    tap = plan(lacking, DENSE, Request(source="launcher", route="tap"))
    assert "vLLM 0.24.0 lacks vllm.v1.worker.X; use" in str(tap.refusal)


@pytest.mark.parametrize("verdict", ["REFUSED", "OFF"])
def test_a_hook_that_is_out_takes_the_tap_with_it(verdict: str) -> None:
    hook = PatchVerdict("reroute", "hook", verdict, "Because of this.")
    fault = PatchVerdict("some-fault", "patch", "APPLY", "In range.")
    installed = environment(patches=(hook, fault))
    auto = plan(installed, DENSE, Request(source="launcher"))
    assert (auto.route, auto.patches) == ("cache", (fault,))
    assert "the hook reroute is out: Because of this)" in auto.warnings[0]
    tap = plan(installed, DENSE, Request(source="launcher", route="tap"))
    assert "Because of this; use the route cache" in str(tap.refusal)


def test_the_tap_depends_on_its_hooks_alone() -> None:
    hook = PatchVerdict("reroute", "hook", "APPLY", "In range.")
    fault = PatchVerdict("some-fault", "patch", "REFUSED", "It looks different.")
    decision = plan(
        environment(patches=(hook, fault)), DENSE, Request(source="launcher")
    )
    assert (decision.route, decision.patches) == ("tap", (hook,))


@pytest.mark.parametrize(
    ("variable", "tap_options", "route", "refused"),
    [
        ("auto", False, "cache", False),
        ("cache", False, "cache", False),
        ("tap", False, "tap", True),
        ("auto", True, "tap", True),
    ],
)
def test_an_unreadable_config(
    variable: str, tap_options: bool, route: str, refused: bool
) -> None:
    options = stock_options()
    if tap_options:
        options["kv_transfer_config"]["kv_connector"] = "TapConnector"
    decision = plan_unread(
        environment(variables={"SPECSHIM_ROUTE": variable}),
        Request(source="engine_args", options=options),
        "There is no config.",
    )
    assert (decision.route, decision.changes) == (route, ())
    if refused:
        assert "There is no config. The tap" in str(decision.refusal)
    else:
        assert decision.warnings == ("There is no config.",)
        assert decision.refusal is None


def test_the_cache_route_without_the_plugin_is_not_patched() -> None:
    variables = {"SPECSHIM_ROUTE": "cache", "VLLM_PLUGINS": "lora"}
    decision = launcher(DENSE, variables=variables)
    assert decision.refusal is None
    assert "VLLM_PLUGINS='lora' keeps specshim's plugin out" in decision.warnings[0]


def test_an_encoder_decoder_is_refused_without_praise() -> None:
    decision = launcher(model(encoder_decoder=True))
    assert "encoder-decoder" in str(decision.refusal)
    assert decision.reason == ""


def test_the_reason_names_who_asked() -> None:
    assert launcher(DENSE, route="cache").reason == "--specshim-route asks for it"
    variables = {"SPECSHIM_ROUTE": "tap"}
    assert launcher(DENSE, variables=variables).reason == "SPECSHIM_ROUTE asks for it"


@pytest.mark.parametrize(
    ("installed", "sentence"),
    [
        (environment(None), "vLLM is not installed in this Python environment"),
        (environment("0.16.0"), "vLLM 0.16.0 cannot extract"),
        (environment(variables={"SPECSHIM_ROUTE": "x"}), "The route 'x' is unknown"),
    ],
)
def test_environments_that_cannot_extract(installed: Any, sentence: str) -> None:
    decision = plan(installed, DENSE, Request(source="launcher"))
    assert sentence in str(decision.refusal)
    assert plan(installed, DENSE, Request(source="engine_args")).refusal is None


def test_a_version_without_a_number_is_planned_as_the_newest() -> None:
    decision = launcher(GDN, "unknown")
    assert "disable_hybrid_kv_cache_manager" not in changed(decision)
    assert "says no release number" in decision.warnings[0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"layer_ids": (1, 3)}, (1, 3, 8)),
        ({"layer_ids": (8, 2)}, (8, 2)),
        ({"layer_ids": (0, 0), "include_last_layer": False}, (0, 0)),
        ({"include_last_layer": False}, (2, 4, 5, 8)),  # as the upstream script
    ],
)
def test_layer_ids(fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert launcher(DENSE, **fields).layer_ids == expected


@pytest.mark.parametrize(
    ("facts", "ids", "sentence"),
    [
        (DENSE, (9,), "The layer id 9 is out of range: MODEL has 8 layers"),
        (DENSE, (-1,), "ids go from 0 (embeddings) to 8 (last layer)"),
        (DENSE, (), "The list of layer ids is empty"),
        (DENSE, (True,), "is not an integer"),
        (model("full_attention", "full_attention"), None, "from 0 (embeddings) to 2"),
    ],
)
def test_layer_ids_that_cannot_be(facts: Any, ids: Any, sentence: str) -> None:
    assert sentence in str(launcher(facts, layer_ids=ids).refusal)


@pytest.mark.parametrize("ids", [[99], [], ["2"], [2.0], [None]])
def test_layer_ids_of_a_stock_request_are_checked_too(ids: list[Any]) -> None:
    assert served(stock_options(ids)).refusal


@pytest.mark.parametrize("ids", ["24", 3, {"a": 1}, None])
def test_layer_ids_of_a_stock_request_that_are_no_list(ids: Any) -> None:
    options = stock_options()
    config = options["speculative_config"]["draft_model_config"]["hf_config"]
    config["eagle_aux_hidden_state_layer_ids"] = ids
    assert served(options).refusal


@pytest.mark.parametrize(
    ("backend", "route", "sentence"),
    [
        ("zip", "auto", "takes file, fp8, mooncake"),
        ("fp8", "auto", "hs_connectors, which is not installed"),
        ("mooncake", "cache", "hs_connectors, which is not installed"),
    ],
)
def test_backends(backend: str, route: str, sentence: str) -> None:
    decision = launcher(DENSE, backend=backend, route=route)
    assert sentence in str(decision.refusal)


@pytest.mark.parametrize(
    ("vllm", "expected"),
    [
        ("0.17.1", {"enable_chunked_prefill": False}),
        ("0.21.0", {"enable_chunked_prefill": False}),
        ("0.22.1", {"enable_chunked_prefill": False, "enable_prefix_caching": False}),
        ("0.23.0", {"enable_chunked_prefill": False, "enable_prefix_caching": False}),
        ("0.24.0", {}),
        ("0.32.0", {}),
    ],
)
def test_what_stock_extraction_needs(vllm: str, expected: dict[str, bool]) -> None:
    variables = {"SPECSHIM_ROUTE": "cache"}
    options = stock_options()
    decision = served(options, vllm=vllm, variables=variables)
    assert decision.route == "cache"
    assert changed(decision) == expected
    again = served(apply(options, decision), vllm=vllm, variables=variables)
    assert again.changes == ()


CHUNKS_OFF = {"enable_chunked_prefill": False}
BOTH_OFF = {**CHUNKS_OFF, "enable_prefix_caching": False}


@pytest.mark.parametrize(
    ("facts", "vllm", "patch_id", "expected"),
    [
        (DENSE, "0.17.1", "chunk-tail-stale", {}),
        (DENSE, "0.21.0", "chunk-tail-stale", {}),
        # 0.22 and 0.23 refuse chunked prefill, patched or not.
        (DENSE, "0.22.1", "chunk-tail-stale", BOTH_OFF),
        (DENSE, "0.22.1", "prefix-cache-cross-request", CHUNKS_OFF),
        (SLIDING, "0.23.0", "prefix-cache-cross-request", CHUNKS_OFF),
        # Prefix caching of layers with a state would need chunked prefill.
        (GDN, "0.23.0", "prefix-cache-cross-request", BOTH_OFF),
    ],
)
def test_what_a_patch_mends_is_not_switched_off(
    facts: Any, vllm: str, patch_id: str, expected: dict[str, bool]
) -> None:
    assert _switched_off(facts, vllm, patch_id, "APPLY") == expected


@pytest.mark.parametrize("verdict", ["REFUSED", "NOT_NEEDED", "OFF", "UNKNOWN"])
def test_a_patch_that_does_not_apply_mends_nothing(verdict: str) -> None:
    assert _switched_off(DENSE, "0.21.0", "chunk-tail-stale", verdict) == CHUNKS_OFF


def test_patches_mend_nothing_in_a_server_without_our_plugin() -> None:
    kept_out = {"VLLM_PLUGINS": "other"}
    off = _switched_off(DENSE, "0.21.0", "chunk-tail-stale", "APPLY", kept_out)
    assert off == CHUNKS_OFF


def test_a_mended_fault_is_no_reason_for_a_warning() -> None:
    options = {"enable_prefix_caching": True}
    mended = (PatchVerdict("prefix-cache-cross-request", "patch", "APPLY", "It is."),)
    request = Request(source="launcher", route="cache", options=options)
    decision = plan(environment("0.23.0", patches=mended), DENSE, request)
    assert decision.refusal is None
    assert decision.warnings == ()


def _switched_off(
    facts: Any,
    vllm: str,
    patch_id: str,
    verdict: str,
    variables: dict[str, str] | None = None,
) -> dict[str, bool]:
    patches = (PatchVerdict(patch_id, "patch", verdict, "So it is."),)
    installed = environment(vllm, patches=patches, variables=variables or {})
    decision = plan(installed, facts, Request(source="launcher", route="cache"))
    assert decision.refusal is None
    return {k: v for k, v in changed(decision).items() if k in BOTH_OFF}


@pytest.mark.parametrize(
    ("facts", "vllm", "options", "sentence"),
    [
        (GDN, "0.21.0", {}, "cannot start a GDN hybrid model before vLLM 0.22"),
        (DENSE, "0.22.1", {"enable_chunked_prefill": True}, "refuses to start"),
        (GDN, "0.22.1", {"enable_prefix_caching": True}, "needs chunked prefill"),
        (DENSE, "0.21.0", {"disable_hybrid_kv_cache_manager": False}, "contradicts"),
        (GDN, "0.32.0", {"disable_hybrid_kv_cache_manager": True}, "from starting"),
    ],
)
def test_what_stock_extraction_cannot(
    facts: Any, vllm: str, options: dict[str, Any], sentence: str
) -> None:
    decision = launcher(facts, vllm, route="cache", options=options)
    assert sentence in str(decision.refusal)


@pytest.mark.parametrize(
    ("facts", "vllm", "options", "sentence"),
    [
        (GDN, "0.24.0", {}, "all-zero states"),
        (DENSE, "0.20.1", {"enable_chunked_prefill": True}, "loses the last rows"),
        (SLIDING, "0.23.0", {"enable_prefix_caching": True}, "rows of other requests"),
        (DENSE, "0.32.0", {"pipeline_parallel_size": 2}, "pipeline parallelism"),
    ],
)
def test_what_stock_extraction_gets_wrong(
    facts: Any, vllm: str, options: dict[str, Any], sentence: str
) -> None:
    decision = launcher(facts, vllm, route="cache", options=options)
    assert decision.refusal is None
    assert sentence in decision.warnings[0]


@pytest.mark.parametrize(
    ("vllm", "verdicts", "warned"),
    [
        ("0.32.0", ("NOT_NEEDED", "APPLY", "NOT_NEEDED"), False),
        ("0.20.1", ("APPLY", "NOT_NEEDED", "APPLY"), False),
        ("0.32.0", ("NOT_NEEDED", "REFUSED", "NOT_NEEDED"), True),
        ("0.24.0", ("NOT_NEEDED", "APPLY", "OFF"), True),
        ("0.19.1", ("NOT_NEEDED", "NOT_NEEDED", "NOT_NEEDED"), True),
        ("0.32.0", (), True),
    ],
)
def test_the_cpu_needs_its_patches(
    vllm: str, verdicts: tuple[str, ...], warned: bool
) -> None:
    ids = ("cpu-aux-layers-unset", "cpu-copy-stream", "cpu-sampler-keywords")
    patches = tuple(
        PatchVerdict(name, "patch", verdict, "")
        for name, verdict in zip(ids, verdicts, strict=False)
    )
    installed = environment(vllm, platform="cpu", patches=patches)
    request = Request(source="launcher", route="cache")
    warnings = " ".join(plan(installed, DENSE, request).warnings)
    assert ("fails on the CPU" in warnings) == warned


def test_the_launcher_keeps_the_rest_of_the_users_speculative_config() -> None:
    options = {
        "speculative_config": {
            "method": "extract_hidden_states",
            "draft-model-config": {"hf_config": {"x": 1}},
        }
    }
    decision = launcher(DENSE, route="cache", options=options)
    assert changed(decision)["speculative_config"] == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {
            "hf_config": {"x": 1, "eagle_aux_hidden_state_layer_ids": [2, 4, 5, 8]}
        },
    }


def test_the_tap_connector_contradicts_the_cache_route() -> None:
    options = {"kv_transfer_config": {"kv_connector": "TapConnector"}}
    assert "drop one of the two" in str(
        launcher(DENSE, route="cache", options=options).refusal
    )


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys, specshim._launch; "
        "print(sorted({'torch', 'vllm', 'transformers', 'speculators', 'yaml'}"
        " & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"
