"""Which tiny models the demo runs on which vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from specshim.detect import Environment

BOTH = "both"


@dataclass(frozen=True)
class DemoRow:
    """One model of the demo: what it is, and from which vLLM release it runs."""

    name: str  # in specshim.tiny
    kind: str
    since: str
    before: str | None = None


# GDN layers: the CPU build of vLLM computes them in bfloat16 only, and registers the
# text-only Qwen3.5 from 0.27.0.
_ROWS = (
    DemoRow("gemma3", "sliding-window hybrid", "0.17.0", "0.20.0"),
    DemoRow("gemma4", "sliding-window hybrid", "0.20.0"),
    DemoRow("qwen3_5", "GDN hybrid", "0.27.0"),
)


def kind_of(name: str) -> str:
    """What the demo calls this model, "" for one that it runs only when asked to."""
    return next((row.kind for row in _ROWS if row.name == name), "")


def choose_models(
    wanted: str, environment: Environment
) -> tuple[list[str], tuple[str, ...]]:
    """The models to run on this vLLM, and a sentence for each that is left out."""
    if wanted != BOTH:
        return [wanted], ()
    try:
        version = Version(environment.vllm or "")
    except InvalidVersion:
        return [row.name for row in _ROWS if row.before is None], ()
    base = Version(version.base_version)
    names, left_out = [], []
    for row in _ROWS:
        if row.before is not None and base >= Version(row.before):
            continue
        if base >= Version(row.since):
            names.append(row.name)
        elif not any(o.kind == row.kind and o.before for o in _ROWS):
            left_out.append(
                f"{row.name} ({row.kind}) needs vLLM {row.since}; this is {version}."
            )
    return names, tuple(left_out)
