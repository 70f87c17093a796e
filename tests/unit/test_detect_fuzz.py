"""Whatever JSON a config.json holds, detection answers or says that it is no model."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from specshim.detect import ModelFacts, ModelNotFound, model_facts
from specshim.detect import decoder as sizes
from specshim.detect.families import ENCODER_DECODER, FAMILIES, PLAIN
from specshim.detect.readers import LETTERS, READERS, WORDS

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=15,
)

LAYER_FIELDS = [name for name, _ in READERS]
FIELDS = [
    *LAYER_FIELDS,
    *sizes.COUNTS,
    *sizes.HIDDEN_SIZES,
    *sizes.EXPERT_COUNTS,
    *sizes.MODALITIES,
    *"""architectures auto_map dtype torch_dtype is_encoder_decoder kv_lora_rank
    max_position_embeddings max_window_layers no_rope_layers ffn_config
    no_rope_layer_interval attn_layer_offset use_sliding_window use_mla vocab_size
    enable_moe_block mamba_d_state linear_num_value_heads""".split(),
]
TYPES = st.sampled_from(sorted({*FAMILIES, *PLAIN, *ENCODER_DECODER, "brand_new"}))
COUNT = st.integers(1, 12)
WORD = st.sampled_from(sorted(WORDS))
VALUES = (
    JSON
    | COUNT
    | st.lists(WORD | SCALARS, max_size=14)
    | st.lists(st.integers(-1, 14), max_size=14)
    | st.text(st.sampled_from([*LETTERS, "L", "G", "?"]), max_size=14)
    | st.fixed_dictionaries({}, optional={
        "kda_layers": st.lists(st.integers(-1, 14) | SCALARS, max_size=8) | SCALARS,
        "full_attn_layers": st.lists(st.integers(-1, 14), max_size=8) | SCALARS,
    })
)  # fmt: skip
CONFIGS = st.builds(
    lambda count, kind, rest: {"num_hidden_layers": count, "model_type": kind, **rest},
    COUNT | SCALARS,
    TYPES | SCALARS,
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6),
)
NESTED = st.dictionaries(
    st.sampled_from(["text_config", "thinker_config", "decoder", "x_config", "y"]),
    CONFIGS | JSON,
    max_size=3,
)


def assert_sound(facts: ModelFacts) -> None:
    assert len(facts.layer_kinds) == facts.num_hidden_layers
    assert sum(group.count for group in facts.groups) == facts.num_hidden_layers
    assert facts.summary
    assert all(len(note) < 300 and note.isprintable() for note in facts.notes)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=6))
def test_arbitrary_objects(config: dict[str, Any]) -> None:
    try:
        assert_sound(model_facts(config))
    except ModelNotFound as error:
        assert str(error).endswith(".") and str(error).isprintable()


@settings(max_examples=max(400, settings.default.max_examples), deadline=None)
@given(CONFIGS, NESTED)
def test_the_fields_that_are_read_may_hold_anything(
    config: dict[str, Any], nested: dict[str, Any]
) -> None:
    try:
        assert_sound(model_facts({**config, **nested}))
    except ModelNotFound as error:
        assert str(error).endswith(".") and str(error).isprintable()


@settings(deadline=None)
@given(COUNT, TYPES, st.lists(WORD | SCALARS, min_size=1, max_size=14))
def test_a_bad_list_is_noted_and_its_layers_are_unknown(
    count: int, kind: str, words: list[object]
) -> None:
    config = {"num_layers": count, "model_type": kind, "layer_types": words}
    if kind == "nemotron_h":
        count = len(words)
    facts = model_facts(config)
    assert facts.num_hidden_layers == count
    for i, word in enumerate(words[:count]):
        if not isinstance(word, str) or word not in WORDS:
            assert facts.layer_kinds[i] == "unknown"
            assert any("not understood" in note for note in facts.notes)
    if len(words) != count:
        assert any("layers, but the model has" in note for note in facts.notes)
    assert set(facts.layer_kinds[len(words) :]) <= {"unknown"}
