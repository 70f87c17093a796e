"""What a config.json means in each model family: one table.

Sources: the config classes of transformers 5.19 (``models/*/configuration_*.py``)
for the defaults and vLLM 0.17 to 0.32 (``model_executor/models``) for the mixers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specshim.detect import kinds


@dataclass(frozen=True)
class Family:
    """Facts of one model family that its config.json does not spell out.

    ``state`` is the kind of the layers that the config calls "mamba" or
    "linear_attention"; ``defaults`` are the fields that the config class of
    transformers fills in where the file leaves them out; ``every`` is the kind of
    all layers where no field lists them; ``mla`` is False where latent fields
    (``kv_lora_rank``) don't mean vLLM's MLA cache.
    """

    state: str = kinds.UNKNOWN
    defaults: Mapping[str, Any] = field(default_factory=dict)
    every: str | None = None
    mla: bool = True


def _interleaved(pattern: int, window: int) -> Family:
    """Each ``pattern``-th layer is global, the others see ``window`` tokens."""
    return Family(
        defaults={"sliding_window_pattern": pattern, "sliding_window": window}
    )


_EVERY_FOURTH_FULL = Family(kinds.GDN, {"full_attention_interval": 4})
_OPT_IN_WINDOW = Family(
    defaults={
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
)

FAMILIES: Mapping[str, Family] = {
    # gated delta net
    "qwen3_next": _EVERY_FOURTH_FULL,
    "qwen3_5": _EVERY_FOURTH_FULL,
    "qwen3_5_moe": _EVERY_FOURTH_FULL,
    "qwen4_exp": _EVERY_FOURTH_FULL,
    "olmo_hybrid": _EVERY_FOURTH_FULL,
    # other linear attention
    "kimi_linear": Family(kinds.KDA),
    "glm5_next": Family(kinds.KDA),
    "minimax": Family(kinds.LIGHTNING),
    "minimax_text_01": Family(kinds.LIGHTNING),
    "minimax_m1": Family(kinds.LIGHTNING),
    "bailing_hybrid": Family(kinds.LIGHTNING),
    "bailing_moe_linear": Family(kinds.LIGHTNING, mla=False),
    # state space
    "mamba": Family(kinds.MAMBA1, every=kinds.MAMBA1),
    "falcon_mamba": Family(kinds.MAMBA1, every=kinds.MAMBA1),
    "mamba2": Family(kinds.MAMBA2, every=kinds.MAMBA2),
    "jamba": Family(kinds.MAMBA1, {"attn_layer_period": 8, "attn_layer_offset": 4}),
    "zamba": Family(kinds.MAMBA1),
    "zamba2": Family(kinds.MAMBA2),
    "bamba": Family(kinds.MAMBA2, every=kinds.MAMBA2),
    "granitemoehybrid": Family(kinds.MAMBA2, every=kinds.MAMBA2),
    "nemotron_h": Family(kinds.MAMBA2),
    "falcon_h1": Family(kinds.MAMBA2, every=f"{kinds.MAMBA2}+{kinds.FULL}"),
    # short convolution
    "lfm2": Family(kinds.SHORT_CONV, every=kinds.FULL),
    "lfm2_moe": Family(kinds.SHORT_CONV, every=kinds.FULL),
    # sliding windows in some layers
    "gemma2": _interleaved(2, 4096),
    "gemma3": _interleaved(6, 4096),
    "gemma3n": _interleaved(5, 512),
    "gemma4": _interleaved(6, 512),
    "gemma4_unified": _interleaved(6, 512),
    "gpt_oss": _interleaved(2, 128),
    "cohere2": _interleaved(4, 4096),
    "olmo3": _interleaved(4, 4096),
    "exaone4": _interleaved(4, 4096),
    "vaultgemma": _interleaved(2, 512),
    "afmoe": Family(defaults={"global_attn_every_n_layers": 4}),
    "mimo_v2": Family(),
    "mimo_v2_flash": Family(),
    # chunks in some layers
    "llama4": Family(
        defaults={"attention_chunk_size": 8192, "no_rope_layer_interval": 4}
    ),
    # a window in all layers, or in none
    "mistral": Family(defaults={"sliding_window": 4096}),
    "ministral": Family(defaults={"sliding_window": 4096}),
    "ministral3": Family(),
    "mixtral": Family(),
    "phi3": Family(),
    "starcoder2": Family(),
    "qwen2": _OPT_IN_WINDOW,
    "qwen2_moe": _OPT_IN_WINDOW,
    "qwen2_vl": _OPT_IN_WINDOW,
    "qwen2_5_vl": _OPT_IN_WINDOW,
    "qwen2_5_omni": _OPT_IN_WINDOW,
    "qwen3": _OPT_IN_WINDOW,
    "qwen3_moe": _OPT_IN_WINDOW,
    "qwen3_omni_moe": _OPT_IN_WINDOW,
    "smollm3": Family(defaults={"use_sliding_window": False}),
    # low-rank projections without vLLM's latent cache
    "deepseek_v4": Family(mla=False),
    "minicpm3": Family(mla=False),
}

# Full attention, or MLA where ``kv_lora_rank`` says so, in every layer.
PLAIN = frozenset(
    """apertus arcee axk1 baichuan bailing_moe bailing_moe_v2 bart bloom chatglm
    cohere dbrx deepseek deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5
    ernie4_5_moe exaone falcon gemma glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe
    glm_moe_dsa gpt2 gpt_bigcode gpt_neox gptj granite granitemoe granitemoeshared
    helium hunyuan_v1_dense hunyuan_v1_moe internlm internlm2 internlm3 kimi_k2 llama
    longcat_flash marian mbart mimo minicpm minimax_m2 mpt nemotron olmo olmo2 olmoe
    opt orion persimmon phi phimoe qwen qwen3_vl qwen3_vl_moe seed_oss solar stablelm
    t5 teleflm telechat2 whisper xverse""".split()
)

# Types whose config class sets ``is_encoder_decoder``, which a file may leave out.
ENCODER_DECODER = frozenset(
    """bart blenderbot encoder-decoder florence2 m2m_100 marian mbart mt5 pegasus
    plbart seamless_m4t speech_to_text t5 t5gemma t5gemma2 umt5 whisper""".split()
)

# Sizes of config classes that wrappers lean on when their text_config names only
# a type (LLaVA-1.5 and 1.6): num_hidden_layers, hidden_size.
CLASS_SIZES: Mapping[str, tuple[int, int]] = {
    "llama": (32, 4096),
    "mistral": (32, 4096),
    "qwen2": (32, 4096),
}


def family_name(model_type: str) -> str:
    """The table's name for a model type: text parts drop their ``_text``."""
    return model_type.removesuffix("_text")


def is_known(model_type: str) -> bool:
    """Whether the tables above speak of this model type."""
    name = family_name(model_type)
    return name in FAMILIES or name in PLAIN or name in ENCODER_DECODER


def family(model_type: str) -> Family:
    """The facts of ``model_type``; those of no family where it is not known."""
    return FAMILIES.get(family_name(model_type), Family())
