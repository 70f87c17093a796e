"""Which families run how: the table behind ``run_families.py`` and the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specshim.tiny import ARCHITECTURES

EAGER = "eager, chunks of 64"
COMPILED = "compiled, chunks of 64"


@dataclass(frozen=True)
class Run:
    """One cell of a release: a tiny model, and how vLLM is to run it.

    Attributes:
        model: its name in specshim.tiny.
        mode: what the results call this way of running it.
        options: of ``vllm.LLM``, beside those that all runs share.
        stand_ins: parts of vLLM's CPU build that lack something this family needs,
            by their names in stand_ins.py.
        why: of options and stand-ins, a sentence for the results.
    """

    model: str
    mode: str = EAGER
    options: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = ()
    why: str = ""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return self.model if self.mode == EAGER else f"{self.model}/{self.mode}"


_ROTARY = "RotaryEmbedding.forward_cpu is off on 3-D queries, so no custom ops"
_NO_CUSTOM_OPS = {"compilation_config": {"custom_ops": ["none"]}}

_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "lfm2": {"options": _NO_CUSTOM_OPS, "why": _ROTARY},
    "deepseek_v3": {
        "options": {**_NO_CUSTOM_OPS, "attention_backend": "CPU_MLA"},
        "why": f"{_ROTARY}; the AMX backend of MLA computes in bfloat16 only",
    },
    "minimax_m2": {
        "stand_ins": ("sigmoid_router",),
        "why": "the CPU router asserts softmax where experts have no groups",
    },
    "jamba": {
        "stand_ins": ("contiguous_gemm",),
        "why": "oneDNN takes contiguous inputs only",
    },
}

RUNS: tuple[Run, ...] = (
    *(Run(name, **_SPECIAL.get(name, {})) for name in ARCHITECTURES),
    *(
        Run(name, mode="transformers backend", options={"model_impl": "transformers"})
        for name in ("llama", "qwen3", "gemma2")
    ),
)
BY_NAME: Mapping[str, Run] = {run.name: run for run in RUNS}
