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
        check: what is asked of it: prompts in one process, or chats with an image.
        why: of options and stand-ins, a sentence for the results.
    """

    model: str
    mode: str = EAGER
    options: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = ()
    check: str = "tapped"
    why: str = ""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return self.model if self.mode == EAGER else f"{self.model}/{self.mode}"


_ROTARY = "RotaryEmbedding.forward_cpu is off on 3-D queries, so no custom ops"
_NO_CUSTOM_OPS = {"compilation_config": {"custom_ops": ["none"]}}

_IMAGES = {
    "skip_tokenizer_init": False,
    "max_num_batched_tokens": 128,
    "limit_mm_per_prompt": {"image": 1, "video": 0},
}

_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "lfm2": {"options": _NO_CUSTOM_OPS, "why": _ROTARY},
    "deepseek_v3": {
        "options": {**_NO_CUSTOM_OPS, "attention_backend": "CPU_MLA"},
        "why": f"{_ROTARY}; the AMX backend of MLA computes in bfloat16 only",
    },
    "qwen3_5_vl": {"options": _IMAGES},
    "qwen3_vl": {"options": _IMAGES},
    "deepseek_v2": {
        "options": {**_NO_CUSTOM_OPS, "attention_backend": "CPU_MLA"},
        "why": f"{_ROTARY}; the AMX backend of MLA computes in bfloat16 only",
    },
    "glm4_moe_lite": {
        "options": {**_NO_CUSTOM_OPS, "attention_backend": "CPU_MLA"},
        "why": f"{_ROTARY}; the AMX backend of MLA computes in bfloat16 only",
    },
    "longcat_flash": {
        "options": {**_NO_CUSTOM_OPS, "attention_backend": "CPU_MLA"},
        "why": f"{_ROTARY}; the AMX backend of MLA computes in bfloat16 only",
    },
    **{
        name: {"why": "window beyond all prompts: vLLM's is one token wider"}
        for name in ("cohere2", "cohere2_moe")
    },
    "bloom": {"why": "vLLM takes the exact GELU, transformers its approximation"},
    "apertus": {"why": "vLLM holds the parameters of xIELU in bfloat16"},
    "lfm2_moe": {"options": _NO_CUSTOM_OPS, "why": _ROTARY},
    "minimax_m2": {
        "stand_ins": ("sigmoid_router",),
        "why": "the CPU router asserts softmax where experts have no groups",
    },
    **{
        name: {
            "stand_ins": ("contiguous_gemm", "selective_scan"),
            "why": "oneDNN takes contiguous inputs only; Mamba 1's scan is left out",
        }
        for name in ("jamba", "mamba", "falcon_mamba")
    },
    "nemotron_h_moe": {
        "stand_ins": ("ungated_experts",),
        "why": "the CPU build has no experts without a gate",
    },
}

RUNS: tuple[Run, ...] = (
    *(Run(name, **_SPECIAL.get(name, {})) for name in ARCHITECTURES),
    *(
        Run(
            name,
            mode="chat with an image, server",
            options=_IMAGES,
            check="pictured",
        )
        for name, row in ARCHITECTURES.items()
        if row.takes_images
    ),
    *(
        Run(name, mode="transformers backend", options={"model_impl": "transformers"})
        for name in ("llama", "qwen3", "gemma2")
    ),
    *(Run(name, mode=COMPILED) for name in ("llama", "gemma3")),
)
BY_NAME: Mapping[str, Run] = {run.name: run for run in RUNS}

FEW = (
    *("llama", f"llama/{COMPILED}", "gemma3", f"gemma3/{COMPILED}"),
    *("granite4", "qwen3_next", "qwen3_5", "deepseek_v3"),
)
"""What is run on one release of each minor: dense, sliding window, Mamba, GDN, MLA."""
