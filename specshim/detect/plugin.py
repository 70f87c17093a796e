"""Whether vLLM's processes will load specshim's plugin."""

from __future__ import annotations

from collections.abc import Mapping

GROUP = "vllm.general_plugins"
NAME = "specshim"


def plugin_visible() -> bool:
    """Whether specshim is installed with its entry point, not merely importable."""
    from importlib.metadata import entry_points  # here: see model.py

    return NAME in entry_points(group=GROUP).names


def plugin_allowed(variables: Mapping[str, str]) -> bool:
    """Whether VLLM_PLUGINS, vLLM's allow-list, lets it in; set but empty it does not.

    Source: ``vllm.envs`` splits at commas and strips nothing.
    """
    value = variables.get("VLLM_PLUGINS")
    return value is None or NAME in value.split(",")
