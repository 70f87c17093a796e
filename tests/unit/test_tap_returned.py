"""A model returns what its taps recorded, or does not start."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from test_tap_probe import (
    LAYERS,
    Many,
    ManyModel,
    Model,
    Pending,
    config,
    one_rank,
    runner_of,
    truths,
)

from specshim.tap.layers import TapRefused
from specshim.tap.returned import return_taps

ASKED = (0, 2, LAYERS)
__all__ = ["one_rank"]  # a fixture, used by every test here


def settings(**fields):
    made = config()
    made.additional_config = fields
    return made


def test_the_states_come_beside_the_models_own_output():
    model, ids = Model(Pending), torch.randint(0, 50, (21,))
    expected, given = truths(model, ids), settings(mine=1)
    with torch.inference_mode():
        plain = model(ids)
        return_taps(runner_of(model), given, ASKED)
        for count in (21, 8):
            output, states = model(ids[:count])
            torch.testing.assert_close(output, plain[:count])
            for layer_id, state in zip(ASKED, states, strict=True):
                torch.testing.assert_close(state, expected[layer_id][:count])
    assert given.additional_config == {"mine": 1, "specshim_returns": list(ASKED)}


def test_a_graph_that_knows_no_taps_is_found_out():
    model, ids = Model(Pending), torch.randint(0, 50, (21,))
    return_taps(runner_of(model), settings(), ASKED)
    for layer in model.layers:
        layer.__dict__.pop("forward", None)  # as a graph from a cache would run
    with pytest.raises(TapRefused, match="remove VLLM_CACHE_ROOT"):
        model(ids)


def test_a_model_that_cannot_be_tapped_says_so_without_circles():
    model = ManyModel(Many)
    with pytest.raises(TapRefused) as refused:
        return_taps(runner_of(model), settings(), (2, LAYERS))
    message = str(refused.value)
    assert message.startswith("ManyModel does not return all of the layers [2, ")
    assert "--specshim-route cache" not in message
