"""Published configs decide what detection says: one row per model."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specshim.detect import LayerGroup, ModelNotFound, detect_model, model_facts

CONFIGS = Path(__file__).parents[1] / "data" / "configs"

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
GDN, KDA, MLA = "gated_delta_net", "kimi_delta_attention", "mla"
M1, M2, BOTH = "mamba1", "mamba2", "mamba2+full_attention"

# name: summary, hybrid, kinds with their counts, the field that said so
PUBLISHED: Mapping[str, tuple[str, bool, Mapping[str, int], str]] = {
    "llama-3.1-70b": ("dense", False, {FULL: 80}, "model_type"),
    "qwen2-0.5b": ("dense", False, {FULL: 24}, "model_type"),
    "qwen3-4b": ("dense", False, {FULL: 36}, "model_type"),
    "qwen3-30b-a3b": ("dense", False, {FULL: 48}, "model_type"),
    "qwen3-omni-30b-a3b": (
        "dense", False, {FULL: 48}, "thinker_config.text_config.model_type"),
    "qwen3-next-80b-a3b": (
        "GDN hybrid", True, {GDN: 36, FULL: 12}, "full_attention_interval"),
    "qwen3.5-27b": (
        "GDN hybrid", True, {GDN: 48, FULL: 16}, "text_config.layer_types"),
    "qwen3.6-35b-a3b": (
        "GDN hybrid", True, {GDN: 30, FULL: 10}, "text_config.layer_types"),
    "olmo-hybrid-7b": ("GDN hybrid", True, {GDN: 24, FULL: 8}, "layer_types"),
    "kimi-linear-48b-a3b": (
        "KDA hybrid", True, {KDA: 20, MLA: 7}, "linear_attn_config"),
    "minimax-text-01": (
        "lightning-attention hybrid", True,
        {"lightning_attention": 70, FULL: 10}, "attn_type_list"),
    "minimax-m2": ("dense", False, {FULL: 62}, "attn_type_list"),
    "gemma-3-1b": (
        "sliding-window hybrid", True, {SLIDING: 22, FULL: 4},
        "sliding_window_pattern"),
    "gemma-3-27b": (
        "sliding-window hybrid", True, {SLIDING: 52, FULL: 10},
        "text_config.sliding_window_pattern (class default)"),
    "gemma-3n-e4b": (
        "sliding-window hybrid", True, {SLIDING: 28, FULL: 7},
        "text_config.layer_types"),
    "gemma-4-e2b": (
        "sliding-window hybrid", True, {SLIDING: 28, FULL: 7},
        "text_config.layer_types"),
    "mistral-7b-v0.3": ("dense", False, {FULL: 32}, "model_type"),
    "phi-3-mini-4k": (
        "dense (sliding window)", False, {SLIDING: 32}, "sliding_window"),
    "phi-4-mini": ("dense (sliding window)", False, {SLIDING: 32}, "sliding_window"),
    "llama-4-scout": (
        "chunked-attention hybrid", True, {CHUNKED: 36, FULL: 12},
        "text_config.attention_chunk_size"),
    "deepseek-v3": ("dense (MLA)", False, {MLA: 61}, "model_type"),
    "deepseek-v3.2": ("dense (MLA)", False, {MLA: 61}, "model_type"),
    "kimi-k2": ("dense (MLA)", False, {MLA: 61}, "model_type"),
    "kimi-k2.5": ("dense (MLA)", False, {MLA: 61}, "text_config.model_type"),
    "bamba-9b": ("Mamba-2 hybrid", True, {M2: 29, FULL: 3}, "attn_layer_indices"),
    "jamba-v0.1": ("Mamba-1 hybrid", True, {M1: 28, FULL: 4}, "attn_layer_period"),
    "falcon-h1-7b": ("Mamba-2 hybrid", True, {BOTH: 44}, "model_type"),
    "nemotron-h-8b": (
        "Mamba-2 hybrid", True, {M2: 24, "mlp": 24, FULL: 4},
        "hybrid_override_pattern"),
    "nemotron-3-nano-30b-a3b": (
        "Mamba-2 hybrid", True, {M2: 23, "moe": 23, FULL: 6},
        "hybrid_override_pattern"),
    "granite-4.0-h-small": ("Mamba-2 hybrid", True, {M2: 36, FULL: 4}, "layer_types"),
    "zamba2-2.7b": ("Mamba-2 hybrid", True, {M2: 45, BOTH: 9}, "layers_block_type"),
    "lfm2-350m": (
        "short-convolution hybrid", True, {"short_convolution": 10, FULL: 6},
        "full_attn_idxs"),
    "mamba-130m": ("pure Mamba", False, {M1: 24}, "model_type"),
    "llava-1.5-7b": ("dense", False, {FULL: 32}, "text_config.model_type"),
    "smolvlm": ("dense", False, {FULL: 24}, "text_config.model_type"),
    "internvl2-8b": ("dense", False, {FULL: 32}, "llm_config.model_type"),
    "class-gemma2": (
        "sliding-window hybrid", True, {SLIDING: 13, FULL: 13}, "layer_types"),
    "class-gemma3": (
        "sliding-window hybrid", True, {SLIDING: 22, FULL: 4},
        "text_config.layer_types"),
    "class-gpt-oss": (
        "sliding-window hybrid", True, {SLIDING: 18, FULL: 18}, "layer_types"),
    "class-cohere2": (
        "sliding-window hybrid", True, {SLIDING: 30, FULL: 10}, "layer_types"),
    "class-olmo3": (
        "sliding-window hybrid", True, {SLIDING: 24, FULL: 8}, "layer_types"),
    "class-exaone4": (
        "sliding-window hybrid", True, {SLIDING: 24, FULL: 8}, "layer_types"),
    "class-mistral": (
        "dense (sliding window)", False, {SLIDING: 32}, "sliding_window"),
    "class-ministral": (
        "dense (sliding window)", False, {SLIDING: 32}, "layer_types"),
    "class-ministral3": ("dense", False, {FULL: 34}, "model_type"),
    "class-llama4": (
        "chunked-attention hybrid", True, {CHUNKED: 36, FULL: 12},
        "text_config.layer_types"),
    "class-glm4": ("dense", False, {FULL: 40}, "model_type"),
    "class-glm4-moe": ("dense", False, {FULL: 46}, "model_type"),
    "class-deepseek-v2": ("dense (MLA)", False, {MLA: 32}, "model_type"),
    "class-qwen3-next": ("GDN hybrid", True, {GDN: 36, FULL: 12}, "layer_types"),
    "class-olmo-hybrid": ("GDN hybrid", True, {GDN: 24, FULL: 8}, "layer_types"),
    "class-kimi-linear": ("KDA hybrid", True, {KDA: 20, MLA: 7}, "layer_types"),
    "class-bamba": ("Mamba-2 hybrid", True, {M2: 29, FULL: 3}, "attn_layer_indices"),
    "class-nemotron-h": (
        "Mamba-2 hybrid", True, {M2: 1, "moe": 1, FULL: 1, "mlp": 1},
        "layers_block_type"),
    "class-zamba2": ("Mamba-2 hybrid", True, {M2: 45, BOTH: 9}, "layers_block_type"),
    "class-granitemoehybrid": ("pure Mamba-2", False, {M2: 32}, "layer_types"),
    "class-lfm2": ("dense", False, {FULL: 32}, "layer_types"),
    "class-mamba2": ("pure Mamba-2", False, {M2: 64}, "model_type"),
    "class-t5": ("encoder-decoder", False, {FULL: 6}, "model_type"),
    "class-bart": ("encoder-decoder", False, {FULL: 12}, "model_type"),
    "class-whisper": ("encoder-decoder", False, {FULL: 4}, "model_type"),
}  # fmt: skip

MOE = """class-deepseek-v2 class-glm4-moe class-gpt-oss class-granitemoehybrid
    class-kimi-linear class-llama4 class-nemotron-h class-qwen3-next deepseek-v3
    deepseek-v3.2 granite-4.0-h-small jamba-v0.1 kimi-k2 kimi-k2.5 kimi-linear-48b-a3b
    llama-4-scout minimax-m2 minimax-text-01 nemotron-3-nano-30b-a3b qwen3-30b-a3b
    qwen3-next-80b-a3b qwen3-omni-30b-a3b qwen3.6-35b-a3b""".split()
MULTIMODAL = """gemma-3-27b gemma-3n-e4b gemma-4-e2b internvl2-8b kimi-k2.5
    llama-4-scout llava-1.5-7b qwen3-omni-30b-a3b qwen3.5-27b qwen3.6-35b-a3b
    smolvlm""".split()
CUSTOM_CODE = ["deepseek-v3", "kimi-linear-48b-a3b", "minimax-text-01"]


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return loaded


def test_every_data_file_has_a_row() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config(name: str) -> None:
    summary, hybrid, kinds, source = PUBLISHED[name]
    facts = model_facts(config(name))
    assert {group.kind: group.count for group in facts.groups} == kinds
    assert {group.source for group in facts.groups} == {source}
    assert (facts.summary, facts.hybrid) == (summary, hybrid)
    assert len(facts.layer_kinds) == facts.num_hidden_layers == sum(kinds.values())
    assert facts.known
    assert facts.moe == (name in MOE)
    assert facts.multimodal == (name in MULTIMODAL)
    assert facts.trust_remote_code == (name in CUSTOM_CODE)
    assert facts.encoder_decoder == (summary == "encoder-decoder")


def test_sizes_come_from_the_decoder() -> None:
    facts = model_facts(config("qwen3.5-27b"))
    assert facts.text_config == "text_config"
    assert (facts.model_type, facts.dtype) == ("qwen3_5", "bfloat16")
    assert facts.architectures == ("Qwen3_5ForConditionalGeneration",)
    assert (facts.num_hidden_layers, facts.hidden_size) == (64, 5120)
    assert facts.vocab_size == 248320


def test_a_wrapper_that_names_no_sizes_takes_those_of_the_class() -> None:
    facts = model_facts(config("llava-1.5-7b"))
    assert (facts.num_hidden_layers, facts.hidden_size) == (32, 4096)
    assert "names no layer count" in facts.notes[0]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("qwen3-next-80b-a3b", (3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47)),
        ("gemma-3-1b", (5, 11, 17, 23)),
        ("kimi-linear-48b-a3b", ()),
        ("jamba-v0.1", (4, 12, 20, 28)),
        ("bamba-9b", (9, 18, 27)),
        ("llama-4-scout", tuple(range(3, 48, 4))),
        ("nemotron-3-nano-30b-a3b", (5, 12, 19, 26, 33, 42)),
        ("lfm2-350m", (2, 5, 8, 10, 12, 14)),
    ],
)
def test_which_layers_see_everything(name: str, layers: tuple[int, ...]) -> None:
    kinds = model_facts(config(name)).layer_kinds
    assert tuple(i for i, kind in enumerate(kinds) if kind == FULL) == layers


def test_kimi_counts_its_layers_from_one() -> None:
    kinds = model_facts(config("kimi-linear-48b-a3b")).layer_kinds
    assert [i for i, kind in enumerate(kinds) if kind == MLA] == [
        3, 7, 11, 15, 19, 23, 26,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["gemma-3-1b", "qwen3-next-80b-a3b"])
def test_old_and_new_spellings_mean_the_same(name: str) -> None:
    """transformers 5 writes every layer out and calls the dtype dtype."""
    old = config(name)
    facts = model_facts(old)
    words = {GDN: "linear_attention"}
    dropped = ("torch_dtype", "sliding_window_pattern", "full_attention_interval")
    new = {key: value for key, value in old.items() if key not in dropped}
    new["dtype"] = old["torch_dtype"]
    new["layer_types"] = [words.get(kind, kind) for kind in facts.layer_kinds]
    new["rope_parameters"] = {"sliding_attention": {"rope_type": "default"}}
    renewed = model_facts(new)
    assert renewed.layer_kinds == facts.layer_kinds
    assert renewed.dtype == facts.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("granite-4.0-h-small", {"mamba": "linear_attention", "attention": FULL}),
        ("zamba2-2.7b", {"mamba": "linear_attention"}),
    ],
)
def test_transformers_5_renamed_the_words(name: str, pairs: Mapping[str, str]) -> None:
    old = config(name)
    field = "layer_types" if "layer_types" in old else "layers_block_type"
    new = {**old, field: [pairs.get(word, word) for word in old[field]]}
    assert model_facts(new).layer_kinds == model_facts(old).layer_kinds


BASE = {"num_hidden_layers": 4, "hidden_size": 8, "num_attention_heads": 2}


def judge(**fields: object) -> Any:
    return model_facts({**BASE, **fields})


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"sliding_window": None}, [FULL] * 4),
        ({"sliding_window": 0}, [FULL] * 4),
        ({"sliding_window": 64}, [SLIDING] * 4),
        ({"sliding_window": 64, "use_sliding_window": False}, [FULL] * 4),
        (
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            [FULL] * 3 + [SLIDING],
        ),
        (
            {"sliding_window": 64, "sliding_window_pattern": "LLLG"},
            [SLIDING] * 3 + [FULL],
        ),
        (
            {"sliding_window": None, "layer_types": [SLIDING, FULL] * 2},
            [FULL] * 4,
        ),
        (
            {"hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window": 64,
             "attention_chunk_size": 128},
            [FULL, SLIDING, SLIDING, FULL],
        ),
        (
            {"attention_chunk_size": 128, "no_rope_layers": [1, 0, 1, 0]},
            [CHUNKED, FULL] * 2,
        ),
        ({"kv_lora_rank": 512}, [MLA] * 4),
        (
            {"layer_types": ["linear_attention", "full_attention"] * 2,
             "linear_num_value_heads": 4},
            [GDN, FULL] * 2,
        ),
        (
            {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4},
            [M2, FULL] * 2,
        ),
        ({"layer_types": ["linear_attention", FULL] * 2}, ["unknown", FULL] * 2),
        ({"mamba_d_state": 16}, ["unknown"] * 4),
        ({"compress_ratios": [0, 4, 128, 4]}, [SLIDING] + ["compressed_attention"] * 3),
    ],
)  # fmt: skip
def test_an_unknown_type_is_judged_by_its_fields(
    fields: dict[str, object], kinds: list[str]
) -> None:
    facts = judge(model_type="brand_new", **fields)
    assert list(facts.layer_kinds) == kinds
    assert not facts.known
    assert any("'brand_new' is not known" in note for note in facts.notes)


def test_what_may_be_anything_counts_as_hybrid() -> None:
    facts = judge(model_type="brand_new", mamba_d_state=16)
    assert (facts.hybrid, facts.summary) == (True, "unknown layers")


def test_latent_projections_without_a_latent_cache() -> None:
    facts = judge(model_type="minicpm3", kv_lora_rank=256)
    assert set(facts.layer_kinds) == {FULL}


def test_a_granite_hybrid_of_attention_alone_is_dense() -> None:
    facts = judge(model_type="granitemoehybrid", layer_types=["attention"] * 4)
    assert (facts.summary, facts.hybrid) == ("dense", False)


def test_a_short_list_leaves_layers_unknown_and_says_so() -> None:
    facts = judge(model_type="qwen3_5_text", layer_types=["full_attention"] * 3)
    assert facts.layer_kinds == (FULL, FULL, FULL, "unknown")
    assert "layer_types describes 3 layers, but the model has 4" in facts.notes[0]


def test_strange_words_are_named() -> None:
    facts = judge(model_type="llama", layer_types=[FULL, "spiral", 7, None])
    assert facts.layer_kinds == (FULL, "unknown", "unknown", "unknown")
    assert "'7', 'None', 'spiral'" in facts.notes[0]


def test_a_list_of_the_wrong_type_is_passed_over_with_a_note() -> None:
    facts = judge(model_type="gemma3_text", layer_types=12)
    assert facts.layer_kinds == (SLIDING,) * 4
    assert facts.groups == (
        LayerGroup(SLIDING, 4, "sliding_window_pattern (class default)"),
    )
    assert "layer_types is not understood" in facts.notes[0]


def test_nemotrons_list_decides_over_its_layer_count() -> None:
    facts = judge(model_type="nemotron_h", hybrid_override_pattern="M*M-M*")
    assert facts.num_hidden_layers == 6
    assert "num_hidden_layers is 4" in facts.notes[0]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"model_type": "siglip_vision_model", "vision_config": {"num_layers": 3}},
        {"talker_config": {"text_config": {"num_hidden_layers": 3}}},
    ],
)
def test_no_decoder(broken: dict[str, object]) -> None:
    with pytest.raises(ModelNotFound, match="names no layer count"):
        model_facts(broken)


@pytest.mark.parametrize("count", [True, "32", "x", 0, -1, 2.5, [4]])
@pytest.mark.parametrize("kind", ["made", "class with a default"])
def test_a_count_that_is_no_count(count: object, kind: str) -> None:
    model_type = "mistral" if kind.startswith("class") else kind
    assert kind == "made" or model_facts({"model_type": model_type}).num_hidden_layers
    with pytest.raises(ModelNotFound, match=r"num_hidden_layers is .* no positive"):
        model_facts({"model_type": model_type, "num_hidden_layers": count})


def test_sizes_of_the_config_class_are_noted() -> None:
    notes = " ".join(model_facts({"model_type": "mistral"}).notes)
    assert "names no layer count; that of transformers' mistral config" in notes
    assert "names no hidden size; that of transformers' mistral config" in notes


def test_an_absurd_layer_count_is_refused() -> None:
    with pytest.raises(ModelNotFound, match="claims 1000000000 layers"):
        judge(num_hidden_layers=10**9)


@pytest.mark.parametrize(
    ("nested", "path"),
    [
        ({"llm_config": BASE, "vision_config": BASE}, "llm_config"),
        ({"language_config": BASE}, "language_config"),
        ({"vision_config": BASE, "text_config": BASE}, "text_config"),
        ({"audio_config": BASE, "backbone_config": BASE}, "backbone_config"),
        ({**BASE, "backbone_config": BASE}, ""),
        ({**BASE, "text_config": {}}, ""),
        ({**BASE, "text_config": BASE}, "text_config"),
        ({"encoder": BASE, "decoder": BASE}, "decoder"),
    ],
)
def test_where_the_decoder_is(nested: dict[str, object], path: str) -> None:
    assert model_facts(nested).text_config == path


def test_detection_is_fast(tmp_path: Path) -> None:
    """Well under 50 ms with the largest list of the data files."""
    (tmp_path / "config.json").write_text(json.dumps(config("minimax-text-01")))
    took = []
    for _ in range(5):
        start = time.perf_counter()
        detect_model(str(tmp_path))
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05
