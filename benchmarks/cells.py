"""What is measured: shapes of models, modes of serving, cells, and their prompts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

MIXED = "mixed"
DECODE = "decode"  # inter-token latency, offline
SLOW = "slow"  # the tap alone, with a sink that takes so many bytes a second
TRANSPORTS = ("offline", "http")
SHORTEST = 64  # tokens of a prompt of the mixed set
CONCURRENCY = 64
_SPARE_SHARE = 0.1  # of the GPU's memory
_STEP_GIB = 3.0  # that a server takes beside weights and KV cache


@dataclass(frozen=True)
class Shape:
    """A model and what is recorded of it.

    Attributes:
        tiny: name of a tiny model with weights on disk (specshim.tiny), or "".
        config: config.json of a model that gets dummy weights; ``old`` instead of it
            on releases before ``new_since``.
        layer_ids, hidden, itemsize: a token's rows are their product, in bytes.
        dtype: of weights and rows.
        weights_gib: an upper bound.
        kv_gib: of the KV cache, where several servers are started at the same time.
        tokens: prompt tokens of one measurement.
        options: further arguments of vLLM.
    """

    name: str
    layer_ids: tuple[int, ...]
    hidden: int
    layers: int
    vocabulary: int
    dtype: str = "bfloat16"
    tiny: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    old: Mapping[str, Any] = field(default_factory=dict)
    new_since: str = "0"
    weights_gib: float = 0.1
    kv_gib: float = 1.0
    tokens: int = 262_144
    options: Mapping[str, Any] = field(default_factory=dict)
    old_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's rows."""
        return len(self.layer_ids) * self.hidden * self.itemsize

    def is_old(self, release: str) -> bool:
        return Version(release) < Version(self.new_since)


def _llama(
    hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int
) -> Any:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": hidden // heads,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


_ROPE = {
    "rope_type": "default",
    "rope_theta": 10000000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
}
_QWEN_TEXT: Mapping[str, Any] = {
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "attn_output_gate": True,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": _ROPE,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN_VISION = {
    "model_type": "qwen3_5",
    "depth": 27,
    "hidden_size": 1152,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 5120,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [],
}

_SHAPES = (
    Shape("tiny", (2, 4, 5, 8), 128, 8, 400, "float32", tiny="llama", tokens=2_048),
    Shape("tiny-gdn", (2, 4, 5, 8), 128, 8, 400, tiny="qwen3_5", tokens=1_024),
    Shape(
        "tiny-dummy",
        (2, 3, 4),
        256,
        4,
        1000,
        config=_llama(256, 512, 4, 4, 2, 1024),
        tokens=2_048,
    ),
    Shape(
        "llama-8b",
        (2, 16, 29, 32),
        4096,
        32,
        128_000,
        config=_llama(4096, 14336, 32, 32, 8, 128256),
        weights_gib=16,
        kv_gib=12,
    ),
    Shape(
        "qwen3.6-27b",
        (2, 17, 32, 47, 61, 64),
        5120,
        64,
        240_000,
        config={
            "architectures": ["Qwen3_5ForCausalLM"],
            **_QWEN_TEXT,
        },
        old={
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "dtype": "bfloat16",
            "image_token_id": 248056,
            "video_token_id": 248057,
            "vision_start_token_id": 248053,
            "vision_end_token_id": 248054,
            "tie_word_embeddings": False,
            "text_config": _QWEN_TEXT,
            "vision_config": _QWEN_VISION,
        },
        new_since="0.27.0",
        options={"gdn_prefill_backend": "triton"},  # needs nothing beside vLLM
        old_options={"limit_mm_per_prompt": {"image": 0, "video": 0}},
        weights_gib=53,
        kv_gib=9,
    ),
)

SHAPES: Mapping[str, Shape] = {shape.name: shape for shape in _SHAPES}


@dataclass(frozen=True)
class Mode:
    """How the server is started: whether it is asked to extract, and our variables."""

    name: str
    extracts: bool
    variables: Mapping[str, str]


MODES: Mapping[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("plain", False, {"SPECSHIM": "0"}),
        Mode("tap", True, {"SPECSHIM_ROUTE": "tap"}),
        Mode("stock", True, {"SPECSHIM": "0"}),
        Mode("cache", True, {"SPECSHIM_ROUTE": "cache"}),
    )
}


@dataclass(frozen=True)
class Cell:
    """One comparison: the same prompts, served by every mode in turn."""

    shape: Shape
    transport: str
    what: str  # a number of tokens, MIXED or DECODE


def waves(shape: Shape, modes: Sequence[str], gpu_gib: float | None) -> list[list[str]]:
    """Modes that are served at once, so that they can take turns.

    Each has an equal share of the GPU, which must hold the weights and as much as a
    fifth of them beside. Where not all fit, plain and tap stay together, for they are
    compared most closely, and the others are served one by one before them.
    """
    each = 1.2 * shape.weights_gib
    if gpu_gib is None or each * len(modes) <= gpu_gib * (1 - _SPARE_SHARE):
        return [list(modes)]
    pair = [mode for mode in modes if mode in ("plain", "tap")]
    return [[mode] for mode in modes if mode not in pair] + ([pair] if pair else [])


def gpu_share(served: int) -> float:
    """``gpu_memory_utilization`` of each of so many servers on one GPU."""
    return round((1 - _SPARE_SHARE) / served, 3)


def fits_too(shape: Shape, served: int, gpu_gib: float) -> bool:
    """Whether the reference's engine fits beside so many servers."""
    each = shape.weights_gib + _STEP_GIB
    return (served + 1) * (each + shape.kv_gib) <= gpu_gib * (1 - _SPARE_SHARE)


def in_turn(modes: Sequence[str], repeat: int) -> list[str]:
    """Their order in this round: everyone comes first, second and last as often."""
    first = repeat % len(modes)
    return [*modes[first:], *modes[:first]]


def lengths(cell: Cell, longest: int, tokens: int, least: int) -> list[int]:
    """Tokens of each prompt of a measurement: at least ``least`` of them."""
    if cell.what != MIXED:
        length = int(cell.what)
        return [length] * max(least, tokens // length, 1)
    source = random.Random(f"{cell.shape.name} {longest}")
    spread = longest / SHORTEST
    found: list[int] = []
    while sum(found) < tokens or len(found) < least:
        found.append(round(SHORTEST * spread ** source.random()))
    return found


def prompts_of(
    cell: Cell, repeat: int, counts: Sequence[int], known: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Random prompts, the same for every mode; ``known`` ones among them.

    A known prompt, whose states are known, takes the place of one of its length, or of
    the nearest, in the middle of the batch.
    """
    source = random.Random(f"{cell.shape.name} {cell.what} {repeat}")
    found = [random_ids(source, cell.shape, count) for count in counts]
    middle = sorted(range(len(counts)), key=lambda i: abs(i - len(counts) // 2))
    taken: set[int] = set()
    for prompt in known:
        free = [i for i in middle if i not in taken]
        if free:
            place = min(free, key=lambda i: abs(counts[i] - len(prompt)))
            taken.add(place)
            found[place] = list(prompt)
    return found


def random_ids(source: random.Random, shape: Shape, count: int) -> list[int]:
    return [source.randrange(8, shape.vocabulary) for _ in range(count)]


def known_prompts(shape: Shape, whats: Sequence[str]) -> dict[int, list[int]]:
    """By length: those of the cells, and one of 300 tokens for the mixed set."""
    sizes = {int(what) for what in whats if what.isdigit()}
    if MIXED in whats:
        sizes.add(min([300, *sizes]))
    return {n: random_ids(random.Random(n), shape, n) for n in sorted(sizes)}


def known_for(cell: Cell, known: Mapping[int, list[int]]) -> list[list[int]]:
    """Those that go into a measurement of ``cell``: of its length, or all."""
    if cell.what == MIXED:
        return [prompt for size, prompt in known.items() if size >= SHORTEST]
    return [known[int(cell.what)]] if int(cell.what) in known else []
