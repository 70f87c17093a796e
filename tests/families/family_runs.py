"""Which families run how: the table behind ``run_families.py`` and the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specshim.tiny import ARCHITECTURES

EAGER = "eager, chunks of 64"
EAGER_IMAGES = "eager, chunks of 128"  # an image does not fit into 64
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
        seed: of the random prompts.
        dtype: of the server, where it is not the one of the model's row.
    """

    model: str
    mode: str = EAGER
    options: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: tuple[str, ...] = ()
    check: str = "tapped"
    why: str = ""
    seed: int = 0
    dtype: str = ""

    @property
    def served_dtype(self) -> str:
        """What vLLM computes in."""
        return self.dtype or str(ARCHITECTURES[self.model].config["dtype"])

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return (
            self.model
            if self.mode in (EAGER, EAGER_IMAGES)
            else f"{self.model}/{self.mode}"
        )


_ROTARY = "RotaryEmbedding.forward_cpu is off on 3-D queries, so no custom ops"
_NO_CUSTOM_OPS = {"compilation_config": {"custom_ops": ["none"]}}

_IMAGES = {
    "skip_tokenizer_init": False,
    "max_num_batched_tokens": 128,
    "limit_mm_per_prompt": {"image": 1, "video": 0},
}

_LATENT = {
    "options": {**_NO_CUSTOM_OPS, "attention_backend": "CPU_MLA"},
    "why": f"{_ROTARY}; the AMX backend of MLA computes in bfloat16 only",
}
_PLAIN_OPS = {"options": _NO_CUSTOM_OPS, "why": _ROTARY}
_BLIND = {
    "options": {"limit_mm_per_prompt": {"image": 0, "video": 0}},
    "why": "asked with text alone",
}
_BLIND_TO_ONE = {**_BLIND, "options": {"limit_mm_per_prompt": {"image": 0}}}
_PICTURED = {"options": _IMAGES, "mode": EAGER_IMAGES}
_SIGMOID = {
    "stand_ins": ("one_group_router",),
    "why": "the CPU router asserts softmax where experts have no groups",
}
_SCAN = {
    "stand_ins": ("contiguous_gemm", "selective_scan"),
    "why": "oneDNN takes contiguous inputs only; Mamba 1's scan is left out",
}
_WINDOW = "window beyond all prompts: vLLM's is one token wider"

_SPECIAL: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash"), _LATENT
    ),
    **dict.fromkeys(("hy_v3", "laguna", "minimax_m2"), _SIGMOID),
    **dict.fromkeys(("jamba", "mamba", "falcon_mamba"), _SCAN),
    **dict.fromkeys(("qwen3_5_vl", "qwen3_vl"), _PICTURED),
    "qwen2_5_vl": _BLIND,
    **dict.fromkeys(("gemma3_vl", "mistral3", "llama4_vl"), _BLIND_TO_ONE),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _PLAIN_OPS),
    "cohere2": {"why": _WINDOW},
    "cohere2_moe": {
        "why": f"{_WINDOW}; other prompts, since in the usual ones two experts of one "
        "row are 2e-7 apart",
        "seed": 1,
    },
    "ernie4_5_moe": {
        "stand_ins": ("one_group_router",),
        "why": "the CPU router leaves the correction bias out where experts have no "
        "groups",
    },
    "bloom": {"why": "vLLM takes the exact GELU, transformers its approximation"},
    "apertus": {"why": "vLLM holds the parameters of xIELU in bfloat16"},
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
    *("granite4", "qwen3_next", "qwen3_5_vl", "deepseek_v3"),
)
"""What is run on one release of each minor: dense, sliding window, Mamba, GDN, MLA."""
