"""What vLLM's releases do, as far as a plan depends on it; read in their sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packaging.version import InvalidVersion, Version

Release = tuple[int, int]

ROUTES = ("auto", "tap", "cache")

STOCK_CONNECTOR = "ExampleHiddenStatesConnector"
STOCK_MODULE = (
    "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
)
STOCK_CLASS = f"{STOCK_MODULE}.{STOCK_CONNECTOR}"
TAP_CONNECTOR = "TapConnector"
TAP_MODULE = "specshim.tap.connector"
CONNECTORS = (STOCK_CONNECTOR, TAP_CONNECTOR)
TAP_VERSION = 1
EXTRACT = "extract_hidden_states"
LAYER_IDS_KEY = "eagle_aux_hidden_state_layer_ids"

LAUNCHER_STORAGE = "/tmp/hidden_states"  # the default of speculators' launcher
STOCK_STORAGE = "/tmp"  # where the stock connector writes without a path

OLDEST: Release = (0, 17)
"""The first release with extract_hidden_states."""

OLDEST_NAME = ".".join(map(str, OLDEST))

KV_EVENTS_WITH_HYBRID_MANAGER: Release = (0, 20)
"""Before, vLLM refuses the hybrid KV cache manager beside kv_events_config."""

CONNECTOR_DECLARES_HMA: Release = (0, 22)
"""Before, any kv_transfer_config switches the hybrid KV cache manager off unless
the user switches it on; from here on a connector that is SupportsHMA keeps it."""

STOCK_REFUSES_CHUNKED_PREFILL: Release = (0, 22)
STOCK_SAVES_AT_FINISH: Release = (0, 24)
"""From here on the stock connector reads whole block tables when a request ends;
in 0.22 and 0.23 it insists on chunked prefill being off."""

STOCK_HYBRID_ZEROS: Release = (0, 24)
"""The release whose stock connector reads hybrid blocks with the wrong block size."""

STOCK_ON_THE_CPU: Release = (0, 20)
"""The first release whose runner for the CPU loads a drafter at all."""

CPU_PATCHES = ("cpu-aux-layers-unset", "cpu-copy-stream", "cpu-sampler-keywords")
"""The patches without which stock extraction does not run on the CPU."""

YAML_FALSE_COUNTS: Release = (0, 29)
"""Before, ``option: false`` in a --config file is ignored."""

STATEFUL_KINDS = frozenset(
    {
        "gated_delta_net",
        "kimi_delta_attention",
        "lightning_attention",
        "mamba1",
        "mamba2",
        "short_convolution",
    }
)
"""Layer kinds whose state is no KV cache: beside attention layers they need the
hybrid KV cache manager (without it vLLM fails to unify the cache specs), while
sliding-window and chunked layers are then merely stored as full attention."""

HYBRID_MANAGER_PLATFORMS = frozenset({"cpu", "cuda", "rocm", "xpu", "unknown"})
"""Platforms whose support_hybrid_kv_cache() is true; "unknown" is not held back."""


def release(version: str) -> Release | None:
    """Major and minor number of a vLLM version; None where it says none.

    A development version counts as the release it leads to.
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    return parsed.major, parsed.minor


def default_layer_ids(last: int) -> list[int]:
    """What the script of speculators extracts from a model of ``last`` layers."""
    return [2, last // 2, last - 3, last]


def extraction(layer_ids: Iterable[int]) -> dict[str, Any]:
    """The speculative_config that asks stock vLLM for these layers."""
    return {
        "method": EXTRACT,
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {LAYER_IDS_KEY: list(layer_ids)}},
    }


def stock_transfer(path: str) -> dict[str, Any]:
    """The kv_transfer_config that saves to files in stock vLLM."""
    return {
        "kv_connector": STOCK_CONNECTOR,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": path},
    }
