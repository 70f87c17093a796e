"""VLLM_PLUGINS as vLLM reads it."""

from __future__ import annotations

import pytest

from specshim.detect.plugin import plugin_allowed


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (None, True),
        ("specshim", True),
        ("lora,specshim", True),
        ("lora, specshim", False),
        ("", False),
        ("specshim2", False),
    ],
)
def test_the_allow_list(value: str | None, allowed: bool) -> None:
    variables = {} if value is None else {"VLLM_PLUGINS": value}
    assert plugin_allowed(variables) is allowed
