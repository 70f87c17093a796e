"""Samples of one chat template, as a causal model makes them, and shifted ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from specshim._sample_beginnings import Beginnings

TEMPLATE = [500, 7, 8]
LAYERS, HIDDEN = 4, 32


def causal(tokens: list[int]) -> torch.Tensor:
    """Each row from the tokens up to it, as [tokens, layers, hidden size]."""
    rows = []
    for end in range(1, len(tokens) + 1):
        generator = torch.Generator().manual_seed(hash(tuple(tokens[:end])) % 2**31)
        rows.append(torch.randn(LAYERS, HIDDEN, generator=generator).cumsum(0))
    return torch.stack(rows).bfloat16()


def prompt(number: int, length: int = 20) -> list[int]:
    return [*TEMPLATE, *((number * 31 + i) % 400 + 10 for i in range(length)), 9]


def said(change: Callable, count: int = 5, tokens: Callable = prompt) -> list:
    seen = Beginnings()
    prompts = [tokens(number) for number in range(count)]
    return [seen.problem([change(causal(ids))], torch.tensor(ids)) for ids in prompts]


def unchanged(states: torch.Tensor) -> torch.Tensor:
    return states


def test_right_samples_agree() -> None:
    assert said(unchanged) == [None] * 5


def test_noise_of_bfloat16_and_batching_is_no_difference() -> None:
    def noisy(states: torch.Tensor) -> torch.Tensor:
        size = states.float().norm(dim=-1, keepdim=True) / HIDDEN**0.5
        return (states + 0.15 * size * torch.randn(states.shape)).bfloat16()

    assert said(noisy) == [None] * 5


@pytest.mark.parametrize("by", [1, -1, 5])
def test_rolled_rows_are_told_from_the_third_sample_on(by: int) -> None:
    problems = said(lambda states: states.roll(by, 0))
    row = 0 if by > 0 else len(TEMPLATE) - 1
    assert problems[:2] == [None, None]
    for problem in problems[2:]:
        assert problem.startswith(f"row {row} (token {TEMPLATE[row]}) of 24 is another")
    alike = "the same 3 tokens, on" if row else "the same token, on"
    assert alike in problems[2]


def test_rows_of_another_request_are_told_and_the_right_ones_are_taken() -> None:
    seen = Beginnings()
    right = [prompt(number) for number in range(4)]
    for ids in right[:3]:
        assert seen.problem([causal(ids)], torch.tensor(ids)) is None
    wrong = causal([77, *right[3][1:]])
    assert seen.problem([wrong], torch.tensor(right[3])) is not None
    ids = prompt(9)
    assert seen.problem([causal(ids)], torch.tensor(ids)) is None


def test_right_samples_are_taken_after_wrong_ones() -> None:
    seen = Beginnings()
    ids = [prompt(number) for number in range(6)]
    wrong = [causal([90 + n, *i[1:]]) for n, i in enumerate(ids[:2])]
    verdicts = [
        seen.problem([states], torch.tensor(i))
        for states, i in zip([*wrong, *map(causal, ids[2:])], ids, strict=True)
    ]
    # The first right one stands alone against two; from then on there is another.
    assert [verdict is None for verdict in verdicts[3:]] == [True] * 3


def test_the_same_sample_again_says_nothing() -> None:
    seen = Beginnings()
    ids = prompt(1)
    for _ in range(4):
        states = torch.randn(len(ids), LAYERS, HIDDEN)
        assert seen.problem([states], torch.tensor(ids)) is None


def test_images_are_not_compared() -> None:
    """Their tokens are the same, their states are not."""

    def with_image(number: int) -> list[int]:
        return [500, *([403] * 16), *prompt(number)]

    def image(states: torch.Tensor) -> torch.Tensor:
        states = states.clone()
        states[1:17] = torch.randn(16, LAYERS, HIDDEN)
        return states

    assert said(image, tokens=with_image) == [None] * 5


def test_samples_without_a_common_beginning_say_nothing() -> None:
    assert (
        said(
            lambda states: states.roll(1, 0),
            tokens=lambda n: prompt(n)[len(TEMPLATE) :],
        )
        == [None] * 5
    )


def test_the_layers_may_lie_in_several_tensors() -> None:
    seen = Beginnings()
    for number in range(4):
        ids = prompt(number)
        states = causal(ids).roll(1, 0)
        problem = seen.problem([states[:, :3], states[:, 3:]], torch.tensor(ids))
        assert (problem is None) == (number < 2)


def test_a_copy_for_a_worker_begins_anew() -> None:
    seen = Beginnings()
    ids = prompt(1)
    assert seen.problem([causal(ids)], torch.tensor(ids)) is None
    assert seen.kept and not pickle.loads(pickle.dumps(seen)).kept
