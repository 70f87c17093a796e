"""A target that has learnt something, right states of it and moved ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from specshim import _head_check, guard

VOCABULARY, HIDDEN, SLOTS, LENGTH = 128, 64, 3, 600


class Drafter(torch.nn.Module):
    """What speculators' drafters have of their target; ``tied``: head = embedding."""

    d2t = None

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.verifier_lm_head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.verifier_norm = torch.nn.LayerNorm(HIDDEN)
        if tied:
            self.verifier_lm_head.weight = self.embed_tokens.weight

    def forward(self, **batch: torch.Tensor) -> None:
        pass


def batch(
    model: Drafter, seed: int, sure: float = 0.6, moved: int = 0
) -> dict[str, torch.Tensor]:
    """States of which the last layer names the next token in ``sure`` of the rows.

    ``moved``: EAGLE's drafter layers are one place behind their tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
    named = tokens.roll(-1)
    lost = torch.rand(LENGTH, generator=generator) > sure
    other = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
    with torch.no_grad():
        last = 9 * model.verifier_lm_head.weight[torch.where(lost, other, named)]
    noise = torch.randn(LENGTH, SLOTS * HIDDEN, generator=generator)
    return {
        "input_ids": tokens[None],
        "hidden_states": noise.roll(moved, 0)[None],
        "verifier_last_hidden_states": last[None],
        "document_ids": torch.zeros(1, LENGTH, dtype=torch.long),
    }


def train(model: Drafter, change: Callable | None = None, **how) -> None:
    torch.manual_seed(0)
    _head_check.watch(model)
    for seed in range(8):
        sample = batch(model, seed, **how)
        if change:
            change(sample)
        model(**sample)
    assert not model._forward_pre_hooks  # it has decided


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sure", [0.9, 0.3, 0.0])
def test_right_states_are_taken(tied: bool, sure: float) -> None:
    train(Drafter(tied), sure=sure)


@pytest.mark.parametrize(
    ("by", "where"),
    [(1, "at their own place"), (2, "1 places back"), (-1, "2 places on")],
)
def test_shifted_rows_are_told(by: int, where: str) -> None:
    def shift(sample: dict) -> None:
        last = sample["verifier_last_hidden_states"]
        sample["verifier_last_hidden_states"] = last.roll(by, 1)

    with pytest.raises(guard.BadSample, match=rf"{where} .* shifted by \{by:+d}"):
        train(Drafter(), shift)


def test_a_layer_in_the_place_of_the_last_is_told() -> None:
    def swap(sample: dict) -> None:
        states, last = (
            sample["hidden_states"][0].clone(),
            sample["verifier_last_hidden_states"][0].clone(),
        )
        sample["verifier_last_hidden_states"] = states[None, :, -HIDDEN:]
        sample["hidden_states"][0, :, -HIDDEN:] = last

    with pytest.raises(guard.BadSample, match=r"slot 2 names .* in another order"):
        train(Drafter(), swap)


def test_untrained_models_whose_states_are_their_tokens_are_taken() -> None:
    """With a tied head the embedding alone names its own token."""
    model = Drafter(tied=True)

    def embedded(sample: dict) -> None:
        with torch.no_grad():
            rows = model.embed_tokens(sample["input_ids"])
        sample["verifier_last_hidden_states"] = 9 * rows

    train(model, embedded)


def test_text_that_repeats_itself_is_taken() -> None:
    """There the model names the next token and its own place's alike."""
    model = Drafter()

    def repeated(sample: dict) -> None:
        tokens = sample["input_ids"][0, ::3].repeat_interleave(3)[:LENGTH]
        sample["input_ids"] = tokens[None]
        with torch.no_grad():  # it expects that the token comes again
            rows = 9 * model.verifier_lm_head.weight[tokens]
        sample["verifier_last_hidden_states"] = rows[None]

    train(model, repeated)


def test_a_reduced_vocabulary_is_seen_through() -> None:
    model = Drafter()
    model.d2t = torch.ones(VOCABULARY, dtype=torch.long)  # draft i is token i + 1

    def reduced(sample: dict) -> None:
        following = (sample["input_ids"][0].roll(-1) - 1) % VOCABULARY
        with torch.no_grad():
            rows = 9 * model.verifier_lm_head.weight[following]
        sample["verifier_last_hidden_states"] = rows[None]

    train(model, reduced)


def test_drafters_without_the_targets_head_are_left_alone() -> None:
    model = torch.nn.Linear(2, 2)
    _head_check.watch(model)
    assert not model._forward_pre_hooks
