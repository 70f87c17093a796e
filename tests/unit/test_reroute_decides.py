"""What the reroute decides for EngineArgs, without vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plan_values import environment, stock_options

from specshim.reroute import decide


@dataclass
class Args:
    """The fields of vLLM's EngineArgs that matter here, with its defaults."""

    model: str = "default"
    hf_config_path: str | None = None
    hf_overrides: Any = None
    kv_transfer_config: Any = None
    speculative_config: Any = None


@pytest.mark.parametrize(
    ("route", "decided"), [(None, "cache"), ("cache", "cache"), ("tap", "tap")]
)
def test_a_model_that_cannot_be_read_is_left_to_vllm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    route: str | None,
    decided: str,
) -> None:
    monkeypatch.delenv("SPECSHIM_ROUTE", raising=False)
    if route:
        monkeypatch.setenv("SPECSHIM_ROUTE", route)
    plan = decide(Args(model=str(tmp_path), **stock_options()))
    assert (plan.route, plan.changes) == (decided, ())
    assert "has no config.json" in (plan.refusal or plan.warnings[0])
    assert (plan.refusal is None) == (decided == "cache")


def test_the_config_is_where_and_what_the_arguments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "specshim.detect.detect_environment", lambda: environment("0.32.0")
    )
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 8}))
    args = Args("org/elsewhere", str(tmp_path), **stock_options([2, 8]))
    assert decide(args).layer_ids == (2, 8)
    args.hf_overrides = {"num_hidden_layers": 4}
    assert "org/elsewhere has 4 layers" in str(decide(args).refusal)
