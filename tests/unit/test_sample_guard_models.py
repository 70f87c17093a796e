"""What transformers' models compute is never refused, odd prompts included."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from specshim import guard

PAD, VOCABULARY, LAYERS = 0, 128, 4
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "pad_token_id": PAD,
}
HEADS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
}
MODELS = {
    "llama": {**SIZES, **HEADS},
    "qwen2": {**SIZES, **HEADS},
    "gemma2": {**SIZES, **HEADS},
    "mamba2": {
        **SIZES,
        "expand": 2,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 1,
    },
}
PROMPTS = {
    "plain": list(range(1, 49)),
    "one token": [7],
    "two tokens": [7, 7],
    "repeated": [9] * 40,
    "left padding": [PAD] * 6 + list(range(1, 40)),
    "right padding": [*range(1, 40), *[PAD] * 6],
    "padding within": [1, 2, 3, PAD, 4, 5, PAD, PAD, 6, 7, 8, 9],
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param, **MODELS[request.param])
    made = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():  # as padding_idx does it, which Mamba2 has not
        made.get_input_embeddings().weight[PAD] = 0
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_nothing_that_a_model_computes_is_refused(model, prompt, dtype) -> None:
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        found = model.to(dtype)(tokens, output_hidden_states=True).hidden_states
    states = torch.stack(found[:LAYERS], 2)[0]  # the last one is normed
    assert not states[tokens[0] == PAD, 0].any()
    for first, ids in ((0, tuple(range(LAYERS))), (0, None), (1, (1, 2, 3))):
        expected = guard.Expected(layer_ids=ids, silent_tokens=frozenset([PAD]))
        guard.check(states[:, first:], tokens[0], prompt=prompt, expected=expected)
