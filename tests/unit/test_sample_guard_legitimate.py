"""What real models do, and the guard must let through."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sample_values import IDS, sample

from specshim import guard

PAD = 5


def accept(states, tokens, ids=None, silent=()) -> None:
    expected = guard.Expected(layer_ids=ids, silent_tokens=frozenset(silent))
    guard.check(states, tokens, expected=expected)
    guard.check(states, tokens, expected=expected, thorough=True)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("tokens", "layers", "hidden"),
    [(1, 1, 8), (1, 4, 16), (2, 3, 8), (300, 4, 96), (5, 4, 4096), (64, 1, 64)],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_random_samples(tokens, layers, hidden, dtype, seed) -> None:
    accept(*sample(tokens, layers, hidden, dtype, seed))


def test_repeated_tokens_and_identical_prompts() -> None:
    states, tokens = sample(16)
    accept(states[:1].expand(16, -1, -1), tokens[:1].expand(16))
    accept(torch.cat([states, states]), torch.cat([tokens, tokens]))


@pytest.mark.parametrize("ids", [(0, 14, 25, 28), None])
def test_embedding_of_padding_is_zero(ids) -> None:
    states, tokens = sample()
    for rows in ([3, 9, 40], [47], [0])[: None if ids else 1]:
        embedded, padded = states.clone(), tokens.clone()
        padded[rows] = PAD
        embedded[rows, 0] = 0
        accept(embedded, padded, ids)


def test_constant_embedding_of_a_reserved_token() -> None:
    states, tokens = sample()
    tokens[[4, 8]] = 128_002
    states[[4, 8], 0] = 1e-4
    accept(states, tokens, (0, 14, 25, 28))


def test_an_embedding_is_the_same_wherever_its_token_stands() -> None:
    states, tokens = sample()
    tokens[[4, 8]] = PAD
    states[4, 0] = 0  # and not row 8: so it was not computed
    with pytest.raises(guard.BadSample, match=r"row 4 \(token 5\) of 48 is all zero"):
        accept(states, tokens, (0, 14, 25, 28))


def test_zero_embedding_elsewhere_is_no_excuse_for_deeper_layers() -> None:
    states, tokens = sample()
    tokens[4] = PAD
    states[4] = 0
    with pytest.raises(guard.BadSample, match="row 4"):
        accept(states, tokens, (0, 14, 25, 28))


def test_left_padding_with_a_zero_embedding() -> None:
    """Nothing but zeros to look at: zero in, zero out, in every layer."""
    states, tokens = sample()
    tokens[:6] = PAD
    states[:6] = 0
    accept(states, tokens, IDS, silent={PAD})


def test_a_silent_token_that_nobody_vouches_for() -> None:
    """In Mamba models a zero embedding stays zero, wherever it stands."""
    states, tokens = sample()
    tokens[[3, 20, 21]] = PAD
    states[[3, 20, 21]] = 0
    accept(states, tokens, IDS)
    states[20] = 1 + torch.arange(64) / 64
    with pytest.raises(guard.BadSample, match="row 3 "):
        accept(states, tokens, IDS)


def test_a_token_known_to_be_silent() -> None:
    states, tokens = sample()
    tokens[-3:] = PAD
    states[-3:] = 0
    accept(states, tokens, IDS, silent={PAD})
    states[-1] = 1.0 + torch.arange(64) / 64  # the same token is not silent here
    with pytest.raises(guard.BadSample, match="row 45"):
        accept(states, tokens, IDS, silent={PAD})


def test_one_silent_token_at_the_left() -> None:
    states, tokens = sample()
    tokens[[0, 20]] = PAD
    states[0] = 0  # row 20 sees others
    accept(states, tokens, IDS, silent={PAD})
    with pytest.raises(guard.BadSample, match="row 0 "):
        accept(states, tokens, IDS)


def test_massive_activations() -> None:
    states, tokens = sample(64, hidden=1024, dtype=torch.float16)
    states[0, 1:, 7] = 40_000.0
    states[0, 1:, 900] = -65_504.0  # the largest float16
    accept(states, tokens, IDS)


def test_channels_that_are_always_zero() -> None:
    states, tokens = sample(64, hidden=1024)
    states[:, :, 300:] = 0  # a hidden size padded for the kernels
    accept(states, tokens, IDS)
    states[:, :, :] = states.flip(-1)
    accept(states, tokens, IDS)


def test_bfloat16_hides_what_a_layer_of_a_tiny_model_adds() -> None:
    states, tokens = sample(16, hidden=16)
    states[:15, 2] = states[:15, 1]
    accept(states, tokens, IDS)  # not over the whole sample
    states, tokens = sample(1, hidden=64)
    states[:, 2] = states[:, 1]
    accept(states, tokens, IDS)  # too few values to tell


def test_dummy_weights() -> None:
    """vLLM's load_format=dummy: weights within 1e-3, too little to change bfloat16."""
    generator = torch.Generator().manual_seed(0)
    row = (torch.rand(48, 1, 64, generator=generator) - 0.5) * 2e-3
    _, tokens = sample()
    accept(row.bfloat16().expand(-1, 4, -1), tokens, IDS)


def test_rows_that_fp8_flushed_to_zero() -> None:
    """hs_connectors 0.9.0: one scale per token, over all layers."""
    states, tokens = sample(64, hidden=1024, dtype=torch.float32)
    states[:, 0] *= 0.02  # an early layer
    states[0, 1:, 7] = 40_000.0
    top = states.abs().amax((1, 2), keepdim=True)
    scale = top / 448
    stored = (states / scale).to(torch.float8_e4m3fn).bfloat16() * scale.bfloat16()
    assert not stored[0, 0].any()
    accept(stored, tokens, IDS)
    stored[5, 0] = 0  # no massive activation here
    with pytest.raises(guard.BadSample, match="row 5 "):
        accept(stored, tokens, IDS)


def test_a_single_token_whose_early_layer_fp8_flushed_to_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 4, 2048, generator=generator)
    states[:, 0] *= 0.02
    plain = states.clone().bfloat16()
    states[:, 1:3, 7] = 40_000.0
    scale = states.abs().amax((1, 2), keepdim=True) / 448
    stored = (states / scale).to(torch.float8_e4m3fn).bfloat16() * scale.bfloat16()
    assert not stored[0, 0].any()
    tokens = torch.tensor([1])
    for ids in (IDS, (0, 14, 25, None), None):
        accept(stored, tokens, ids)
    massive = states.bfloat16()  # which FP8 did not store
    for lost in (massive, plain):
        lost[0, 0] = 0
        with pytest.raises(guard.BadSample, match=r"row 0 \(token 1\) of 1 is"):
            accept(lost, tokens, IDS)


def test_prompt_embeddings_have_no_token_ids() -> None:
    states, tokens = sample()
    accept(states, tokens[:0], IDS)
    states[4] = 0
    with pytest.raises(guard.BadSample, match="row 4 of 48 is all zero"):
        accept(states, tokens[:0], IDS)
    with pytest.raises(guard.BadSample, match="48 rows for 0 token ids"):
        guard.check(states, tokens[:0], prompt=tokens.tolist())


def test_views_and_expanded_tensors() -> None:
    states, tokens = sample(32, hidden=64)
    wide = torch.cat([states, states], -1)
    accept(wide[:, :, 64:], tokens)
    accept(states.transpose(0, 1).contiguous().transpose(0, 1), tokens)
    accept(states.requires_grad_(), tokens)
