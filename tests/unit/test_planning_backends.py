"""The backends of hs_connectors: on the tap route, on the cache route, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from plan_values import DENSE, GDN, apply, changed, launcher, served, stock_options

FP8 = {
    "kv_connector": "FP8HiddenStatesConnector",
    "kv_role": "kv_producer",
    "kv_connector_module_path": "hs_connectors.fp8_hidden_states_connector",
    "kv_connector_extra_config": {"shared_storage_path": "/a"},
}
STORE = {"mooncake": {"master_server_address": "host:1", "num_writer_threads": 2}}
MOONCAKE = {
    "kv_connector": "MooncakeHiddenStatesConnector",
    "kv_role": "kv_producer",
    "kv_connector_module_path": "hs_connectors.mooncake_hidden_states_connector",
    "kv_connector_extra_config": STORE,
}
BUILT = {"fp8": FP8, "mooncake": MOONCAKE}
SINKS: dict[str, dict[str, Any]] = {
    "fp8": {"shared_storage_path": "/a", "hidden_states_backend": "fp8"},
    "mooncake": {**STORE, "hidden_states_backend": "mooncake"},
}
TAP = {
    "kv_connector": "TapConnector",
    "kv_connector_module_path": "specshim.tap.connector",
    "kv_role": "kv_producer",
}


def launched(backend: str, vllm: str = "0.32.0", facts: Any = DENSE, **fields: Any):
    values = {"hs_connectors": "0.9.0", "backend_config": BUILT[backend], **fields}
    return launcher(facts, vllm, backend=backend, **values)


@pytest.mark.parametrize("backend", BUILT)
def test_the_launcher_takes_them_to_the_tap_with_a_sink(backend: str) -> None:
    path = "/a" if backend == "fp8" else None
    decision = launched(backend, storage_path=path, facts=GDN)
    assert decision.route == "tap"
    config = changed(decision)["kv_transfer_config"]
    assert config == {**TAP, "kv_connector_extra_config": SINKS[backend]}
    # vLLM hashes additional_config: nothing of where samples go may be in it.
    ours = changed(decision)["additional_config"]["specshim"]
    assert sorted(ours) == ["layer_ids", "tap"]


@pytest.mark.parametrize("backend", BUILT)
def test_the_plugin_reroutes_hs_connectors_connectors(backend: str) -> None:
    options = stock_options(kv_transfer_config=BUILT[backend])
    decision = served(options, vllm="0.32.0", hs_connectors="0.9.0")
    assert decision.route == "tap"
    config = changed(decision)["kv_transfer_config"]
    assert config == {**TAP, "kv_connector_extra_config": SINKS[backend]}
    after = apply(options, decision)
    assert "speculative_config" not in after
    again = served(after, vllm="0.32.0", hs_connectors="0.9.0")
    assert (again.route, again.changes) == ("tap", ())


@pytest.mark.parametrize(
    ("backend", "vllm", "expected"),
    [
        ("fp8", "0.22.1", {"enable_chunked_prefill", "enable_prefix_caching"}),
        ("fp8", "0.24.0", set()),
        ("mooncake", "0.23.0", set()),  # reads whole block tables at the end
        ("mooncake", "0.32.0", set()),
    ],
)
def test_the_cache_route_keeps_them(
    backend: str, vllm: str, expected: set[str]
) -> None:
    cache = {"SPECSHIM_ROUTE": "cache"}
    options = stock_options(kv_transfer_config=BUILT[backend])
    decision = served(options, vllm=vllm, hs_connectors="0.9.0", variables=cache)
    assert decision.route == "cache"
    assert set(changed(decision)) == expected
    decision = launched(backend, vllm, route="cache")
    config = changed(decision)["kv_transfer_config"]
    assert config == BUILT[backend]


def test_the_users_own_settings_are_kept() -> None:
    user = {"engine_id": "e", "kv_connector_extra_config": {"sync": True}}
    options = {"kv_transfer_config": user}
    cache = changed(launched("fp8", route="cache", options=options))
    extra = {"shared_storage_path": "/a", "sync": True}
    expected = {**FP8, "kv_connector_extra_config": extra, "engine_id": "e"}
    assert cache["kv_transfer_config"] == expected
    tap = changed(launched("mooncake", options=options))["kv_transfer_config"]
    assert tap["engine_id"] == "e"
    expected = {**SINKS["mooncake"], "sync": True}
    assert tap["kv_connector_extra_config"] == expected


@pytest.mark.parametrize("route", ["tap", "cache"])
@pytest.mark.parametrize(
    ("backend", "fields", "sentence"),
    [
        ("fp8", {"hs_connectors": None}, "which is not installed in this environment"),
        ("fp8", {"hs_connectors": "0.8.1"}, "came with hs_connectors 0.9.0, but 0.8.1"),
        ("mooncake", {"hs_connectors": "0.7.0"}, "came with hs_connectors 0.8.0"),
        ("fp8", {"backend_config": None}, "registers no backend fp8"),
        ("fp8", {"options": {"pipeline_parallel_size": 2}}, "holds all layers at once"),
        (
            "mooncake",
            {
                "options": {
                    "kv_transfer_config": {
                        "kv_connector_extra_config": {"hidden_states_backend": "fp8"}
                    }
                }
            },
            "give the backend once",
        ),
    ],
)
def test_refusals(
    route: str, backend: str, fields: dict[str, Any], sentence: str
) -> None:
    refusal = str(launched(backend, route=route, **fields).refusal)
    assert sentence in refusal
    assert refusal.rstrip(".").count(". ") == 0  # one sentence


def test_what_their_connectors_build_on_came_with_0_22() -> None:
    refusal = str(launched("mooncake", "0.21.0", route="cache").refusal)
    assert "needs vLLM 0.22 or newer" in refusal
    assert launched("mooncake", "0.21.0").refusal is None  # the tap needs none of it


def test_a_connector_of_the_same_name_from_elsewhere_is_kept() -> None:
    config = {**MOONCAKE, "kv_connector_module_path": "mine.connector"}
    decision = served(stock_options(kv_transfer_config=config))
    assert (decision.route, decision.changes) == ("cache", ())
    assert "is kept" in decision.reason
