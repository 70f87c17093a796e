"""The tap connector as one of several in a MultiConnector."""

from __future__ import annotations

from typing import Any

import pytest
from plan_values import DENSE, apply, changed, launcher, served, stock_options

from specshim.planning import LaunchPlan

TAP = {
    "kv_connector": "TapConnector",
    "kv_connector_extra_config": {"shared_storage_path": "/data/hs"},
}
SAVER = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
LOADER = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}


def multi(*children: dict[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(children)},
    }


def planned(*children: dict[str, Any], **options: Any) -> LaunchPlan:
    ids = {"additional_config": {"specshim": {"layer_ids": [2, 4]}}}
    return served({"kv_transfer_config": multi(*children), **ids, **options})


def test_the_tap_is_completed_and_the_others_stay() -> None:
    decision = planned(SAVER, TAP)
    after = changed(decision)
    ours = {
        **TAP,
        "kv_connector_module_path": "specshim.tap.connector",
        "kv_role": "kv_producer",
    }
    assert after["kv_transfer_config"] == multi(SAVER, ours)
    assert after["enable_prefix_caching"] is False
    assert decision.route == "tap" and decision.layer_ids == (2, 4)
    assert decision.warnings == ()


def test_the_plan_of_what_a_plan_made_changes_nothing() -> None:
    ids = {"additional_config": {"specshim": {"layer_ids": [2, 4]}}}
    options = {"kv_transfer_config": multi(TAP, SAVER), **ids}
    assert served(apply(options, served(options))).changes == ()


def test_what_loads_is_warned_of() -> None:
    (warning,) = planned(TAP, LOADER).warnings
    assert "OffloadingConnector may load KV cache" in warning


def test_the_launcher_takes_it_too() -> None:
    options = {"kv_transfer_config": multi({"kv_connector": "TapConnector"}, SAVER)}
    decision = launcher(DENSE, options=options, storage_path="/data/hs")
    tap, saver = changed(decision)["kv_transfer_config"]["kv_connector_extra_config"][
        "connectors"
    ]
    assert tap["kv_connector_extra_config"] == {"shared_storage_path": "/data/hs"}
    assert saver == SAVER


@pytest.mark.parametrize(
    ("children", "sentence"),
    [
        ((TAP, TAP), "more than once"),
        ((TAP, stock_options()["kv_transfer_config"]), "write the same states"),
    ],
)
def test_what_cannot_stand_beside_it(children: Any, sentence: str) -> None:
    refusal = str(planned(*children).refusal)
    assert sentence in refusal and refusal.rstrip(".").count(". ") == 0


def test_without_the_tap_it_is_left_alone() -> None:
    assert planned(SAVER, LOADER).route == "none"
