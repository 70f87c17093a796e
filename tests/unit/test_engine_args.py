"""EngineArgs as options, and changes on a copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from specshim.engine_args import extracts, given_options, with_changes
from specshim.planning import REMOVE, Change


@dataclass
class Transfer:
    kv_connector: str | None = None
    kv_role: str | None = None
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)


@dataclass
class Args:
    """The fields of vLLM's EngineArgs that matter here, with its defaults."""

    model: str = "default"
    kv_transfer_config: Any = None
    speculative_config: Any = None
    enable_prefix_caching: bool | None = None
    stop: list[str] = field(default_factory=list)
    _api_process_rank: int = 0


STOCK = "ExampleHiddenStatesConnector"
SPELLINGS = [
    Transfer(STOCK, "kv_producer"),
    {"kv_connector": STOCK, "kv_role": "kv_producer"},
    f' {{"kv_connector": "{STOCK}", "kv_role": "kv_producer"}}',
]


@pytest.mark.parametrize("value", SPELLINGS)
def test_connector_in_every_spelling(value: Any) -> None:
    args = Args(kv_transfer_config=value, _api_process_rank=-1)
    assert extracts(args)
    assert given_options(args) == {
        "kv_transfer_config": {"kv_connector": STOCK, "kv_role": "kv_producer"}
    }


@pytest.mark.parametrize("value", [None, "{broken", "", {}, object()])
def test_no_hidden_states_asked_for(value: Any) -> None:
    assert not extracts(Args(kv_transfer_config=value, speculative_config=value))


def test_another_connector_counts_with_the_method_of_extraction() -> None:
    own = Transfer("MyConnector")
    method = {"method": "extract_hidden_states"}
    assert extracts(Args(kv_transfer_config=own, speculative_config=method))
    assert not extracts(Args(kv_transfer_config=own))
    assert not extracts(Args(speculative_config={"method": "eagle3"}))


def test_changes_go_onto_a_copy() -> None:
    args = Args("m", Transfer("Example"), {"method": "x"}, True)
    changed = with_changes(
        args,
        [
            Change("speculative_config", REMOVE, "why"),
            Change("spec_method", REMOVE, "an option that older releases lack"),
            Change("kv_transfer_config", {"kv_connector": "Tap"}, "why"),
            Change("enable_prefix_caching", False, "why"),
        ],
    )
    assert changed == Args("m", Transfer("Tap"), None, False)
    assert args == Args("m", Transfer("Example"), {"method": "x"}, True)


def test_option_that_this_release_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no option new_flag"):
        with_changes(Args(), [Change("new_flag", 1, "hybrids need it.")])
