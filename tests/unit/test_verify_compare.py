"""Right states pass, and every fault fails with a sentence that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from standin import LAYER_IDS, reference, right_samples

from specshim.verification.collect import Sample
from specshim.verification.compare import Comparison, compare
from specshim.verification.diagnose import Finding
from specshim.verification.report import diagnosis

FLIPPING = "qwen3_next"  # bfloat16 alone flips its routers and moves single rows far
MODELS = [
    ("llama", "float32"),
    ("gemma4", "float32"),
    ("granite4", "float32"),
    ("deepseek_v3", "float32"),
    ("llama", "bfloat16"),
    ("gemma3", "bfloat16"),
    ("qwen3_5", "bfloat16"),
    (FLIPPING, "bfloat16"),
]
models = pytest.mark.parametrize(("name", "dtype"), MODELS)


def judge(name: str, dtype: str, samples: list[Sample]) -> Comparison:
    rounded = None if dtype == "float32" else reference(name, dtype)
    return compare(samples, LAYER_IDS, reference(name, "float32"), rounded)


def faults(comparison: Comparison) -> list[Finding]:
    return [finding for finding in comparison.findings if finding.wrong]


def edit(
    samples: list[Sample], which: int, change: Callable[[object], object]
) -> list[Sample]:
    """The samples, with the states of one changed in a copy."""
    states = change(samples[which].states.clone())
    changed = replace(samples[which], states=states)
    return [changed if i == which else sample for i, sample in enumerate(samples)]


def edit_all(samples: list[Sample], change: Callable[..., object]) -> list[Sample]:
    for which in range(len(samples)):
        samples = edit(samples, which, change)
    return samples


@models
def test_right_states_are_right(name: str, dtype: str) -> None:
    comparison = judge(name, dtype, right_samples(name, dtype))
    if name == FLIPPING:  # is told, not blamed
        assert comparison.status == "warning"
        assert {(f.kind, f.wrong) for f in comparison.findings} == {
            ("unexplained", False)
        }
    else:
        assert comparison.status == "right"
        assert comparison.findings == ()
    assert comparison.order_right
    assert comparison.token_ids_right == comparison.samples == 4
    assert [layer.nearest_layer for layer in comparison.layers] == list(LAYER_IDS)


@models
def test_swapped_layers(name: str, dtype: str) -> None:
    samples = edit_all(right_samples(name, dtype), lambda s: s[:, [0, 2, 1, 3, 4]])
    comparison = judge(name, dtype, samples)
    assert comparison.status == "wrong"
    assert not comparison.order_right
    assert [
        layer.layer_id for layer in comparison.layers if layer.status == "wrong"
    ] == [
        2,
        4,
    ]
    assert "Layers are swapped: ids 2 and 4." in diagnosis(faults(comparison))


@models
@pytest.mark.parametrize("shift", [1, -1])
def test_rows_shifted_by_one(name: str, dtype: str, shift: int) -> None:
    samples = edit_all(right_samples(name, dtype), lambda s: s.roll(shift, 0))
    comparison = judge(name, dtype, samples)
    assert comparison.status == "wrong"
    place = "after" if shift > 0 else "before"
    sentences = " ".join(diagnosis(faults(comparison)))
    assert f"rows are shifted: each stands 1 {place} its token's place" in sentences


@models
@pytest.mark.parametrize("slot", range(len(LAYER_IDS)))
def test_one_zeroed_row_fails_all(name: str, dtype: str, slot: int) -> None:
    def zero(states):
        states[3, slot] = 0
        return states

    comparison = judge(name, dtype, edit(right_samples(name, dtype), 2, zero))
    assert comparison.status == "wrong"
    assert [layer.zero_rows for layer in comparison.layers] == [
        int(i == slot) for i in range(len(LAYER_IDS))
    ]
    assert diagnosis(faults(comparison)) == (
        f"Id {LAYER_IDS[slot]}: rows are zero (1 row in 1 sample, first: sample 2, "
        "row 3).",
    )


@models
def test_states_of_another_request(name: str, dtype: str) -> None:
    samples = right_samples(name, dtype)
    by_length = sorted(samples, key=lambda sample: len(sample.prompt))
    short, long = by_length[1], by_length[-1]
    samples = edit(
        samples, short.index, lambda s: long.states[: len(short.prompt)].clone()
    )
    comparison = judge(name, dtype, samples)
    assert comparison.status == "wrong"
    sentences = " ".join(diagnosis(faults(comparison)))
    assert f"holds the states of request {long.index}" in sentences
    assert {finding.sample for finding in faults(comparison)} == {short.index}


@models
def test_whole_file_of_another_request(name: str, dtype: str) -> None:
    samples = right_samples(name, dtype)
    samples[0] = replace(
        samples[0], states=samples[1].states, token_ids=samples[1].token_ids
    )
    comparison = judge(name, dtype, samples)
    assert comparison.status == "wrong"
    assert comparison.token_ids_right == 3
    sentences = " ".join(diagnosis(faults(comparison)))
    assert "the file holds the token ids of request 1" in sentences.lower()


@models
def test_post_norm_in_place_of_pre_norm(name: str, dtype: str) -> None:
    samples = right_samples(name, dtype)
    for which, states in enumerate(reference(name, dtype)):

        def normed(received, states=states):
            received[:, -1] = states.post_norm.to(received.dtype)
            return received

        samples = edit(samples, which, normed)
    comparison = judge(name, dtype, samples)
    assert comparison.status == "wrong"
    sentence, *more = diagnosis(faults(comparison))
    assert sentence.startswith("Id 8: holds the states after the final norm instead")
    assert not more or name == FLIPPING  # flipped rows do not match that either
    assert "4 samples" in sentence


@models
def test_one_layer_broadcast_into_all(name: str, dtype: str) -> None:
    samples = edit_all(right_samples(name, dtype), lambda s: s[:, [4, 4, 4, 4, 4]])
    comparison = judge(name, dtype, samples)
    assert comparison.status == "wrong"
    [sentence] = diagnosis(faults(comparison))
    assert sentence.startswith("Ids 0, 2, 4, 5, 8 hold the same states, those of id 8")


@pytest.mark.parametrize(("name", "dtype"), [MODELS[0], MODELS[4], MODELS[6]])
def test_residual_added_twice(name: str, dtype: str) -> None:
    def stale(states):
        # what a layer gave, with a residual that is already in it
        states[:, 3] = states[:, 3] + 0.95 * states[:, 3]
        return states

    comparison = judge(name, dtype, edit_all(right_samples(name, dtype), stale))
    assert comparison.status == "wrong"
    [sentence] = diagnosis(faults(comparison))
    assert sentence.startswith("Id 5: is ")
    assert "twice the reference" in sentence


@models
def test_one_row_of_another_token(name: str, dtype: str) -> None:
    def misplaced(states):
        states[5] = states[2]
        return states

    comparison = judge(name, dtype, edit(right_samples(name, dtype), 1, misplaced))
    assert comparison.status == "wrong"
    assert {f.rows for f in faults(comparison)} == {(5,)}
    assert {f.kind for f in faults(comparison)} == {"shifted"}


@models
def test_rows_of_other_requests_mixed_in(name: str, dtype: str) -> None:
    samples = right_samples(name, dtype)
    foreign = samples[0].states[-4:].flip(0)

    def mixed(states):
        states[:4] = foreign
        return states

    which = max(range(1, 4), key=lambda i: len(samples[i].prompt))
    comparison = judge(name, dtype, edit(samples, which, mixed))
    assert comparison.status == "wrong"
    assert "mixed rows" in {finding.kind for finding in faults(comparison)}


def test_nan_and_garbage() -> None:
    samples = edit(
        right_samples("llama", "float32"),
        0,
        lambda s: s.index_fill(0, torch.tensor(1), torch.nan),
    )
    comparison = judge("llama", "float32", samples)
    assert comparison.status == "wrong"
    assert {f.kind for f in comparison.findings} == {"not finite"}
    garbage = torch.Generator().manual_seed(0)
    samples = edit(
        right_samples("llama", "float32"),
        0,
        lambda s: torch.randn(s.shape, generator=garbage),
    )
    comparison = judge("llama", "float32", samples)
    assert comparison.status == "wrong"
    assert {f.kind for f in comparison.findings} == {"unexplained"}


def test_missing_rows_and_layers() -> None:
    samples = edit(right_samples("llama", "float32"), 0, lambda s: s[:-1])
    samples = edit(samples, 1, lambda s: s[:, :-1])
    comparison = judge("llama", "float32", samples)
    assert comparison.status == "wrong"
    rows = len(samples[0].prompt)
    assert diagnosis(faults(comparison)) == (
        f"The file holds {rows - 1} rows for {rows} tokens (1 sample, first 0).",
        "The file holds 4 layers where 5 were asked for (1 sample, first 1).",
    )


def test_small_float32_difference_is_right_with_a_warning() -> None:
    samples = edit_all(right_samples("llama", "float32"), lambda s: s * (1 + 2e-4))
    comparison = judge("llama", "float32", samples)
    assert comparison.status == "warning"
    assert comparison.layers[0].worst == pytest.approx(2e-4, rel=0.01)


def test_duplicate_ids_are_no_broadcast() -> None:
    samples = right_samples("llama", "float32", (2, 5, 2))
    comparison = compare(samples, (2, 5, 2), reference("llama", "float32"))
    assert comparison.status == "right"


def test_bfloat16_tolerance_is_measured() -> None:
    comparison = judge("llama", "bfloat16", right_samples("llama", "bfloat16"))
    for layer in comparison.layers:
        # the samples are the reference, so the measured distance is theirs
        assert layer.limits.measured == pytest.approx(layer.total, rel=0.2)
        assert layer.same_dtype < layer.total
    noisy = edit_all(
        right_samples("llama", "bfloat16"),
        lambda s: s + 0.1 * s.float().norm(dim=-1, keepdim=True) / 128**0.5,
    )
    assert judge("llama", "bfloat16", noisy).status == "wrong"


def test_a_mixture_of_experts_may_flip_rows_but_not_drift() -> None:
    """Every row off by 15 % passes no limit, though single rows may be off by more."""
    noise = torch.Generator().manual_seed(0)

    def drift(states):
        scale = 0.15 * states.float().norm(dim=-1, keepdim=True) / 128**0.5
        return states + scale * torch.randn(states.shape, generator=noise)

    samples = edit_all(right_samples(FLIPPING, "bfloat16"), drift)
    comparison = judge(FLIPPING, "bfloat16", samples)
    assert comparison.status == "wrong"
    assert [layer.status for layer in comparison.layers[:4]] == ["wrong"] * 4
    assert comparison.layers[4].status in ("wrong", "unclear")


def test_references_that_do_not_fit() -> None:
    samples = right_samples("llama", "float32")
    exact = reference("llama", "float32")
    with pytest.raises(ValueError, match="ids are 0 to 8"):
        compare(samples, (0, 2, 4, 5, 9), exact)
    with pytest.raises(ValueError, match="not the same model"):
        compare(edit(samples, 0, lambda s: s[..., :64]), LAYER_IDS, exact)
    with pytest.raises(ValueError, match="bfloat16 reference"):
        compare(right_samples("llama", "bfloat16"), LAYER_IDS, exact)
