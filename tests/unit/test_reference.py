"""The reference is the residual stream, taken where the definition says."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from standin import KINDS, reference, tiny

from specshim.reference import (
    ReferenceFailed,
    _decoder_layers,
    _rows,
    compute_reference,
    read_config,
)
from specshim.tiny_rows.base import IMAGE, VISION_END, VISION_START


@pytest.mark.parametrize("name", KINDS)
def test_stream_and_final_norm_agree_with_the_model(name: str) -> None:
    """The embedding first, and the final norm turns the last entry into post_norm."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny(name), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    inner = model.model
    norm = getattr(inner, "norm", None) or inner.embedding_norm
    scale = getattr(inner, "embedding_multiplier", 1.0)
    for states in reference(name, "float32"):
        ids = torch.tensor([states.token_ids])
        with torch.no_grad():
            embedded = inner.embed_tokens(ids)[0] * scale
            last = inner(input_ids=ids, use_cache=False).last_hidden_state[0]
            normed = norm(states.stream[-1])
        assert states.stream.shape == (9, len(states.token_ids), 128)
        assert torch.allclose(states.stream[0], embedded)
        assert torch.allclose(states.post_norm, last, atol=1e-5)
        assert torch.allclose(normed, last, atol=1e-5)
        assert not torch.allclose(states.stream[-1], last, atol=1e-1)


def test_stream_agrees_with_output_hidden_states_below_the_last() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama")).eval()
    states = reference("llama", "float32")[0]
    with torch.no_grad():
        output = model(torch.tensor([states.token_ids]), output_hidden_states=True)
    stacked = torch.cat(output.hidden_states)
    assert torch.allclose(stacked[:-1], states.stream[:-1], atol=1e-5)


def test_later_tokens_do_not_change_earlier_rows() -> None:
    prompt = list(range(40))
    short, long = compute_reference(tiny("gemma3"), [prompt[:20], prompt], "float32")
    assert torch.allclose(short.stream, long.stream[:, :20], atol=1e-4)


def test_dtype_is_of_the_computation() -> None:
    exact, rounded = (reference("llama", dtype)[0] for dtype in ("float32", "bfloat16"))
    assert rounded.stream.dtype == torch.float32
    assert torch.equal(rounded.stream.bfloat16().float(), rounded.stream)
    assert 1e-3 < (exact.stream - rounded.stream).norm() / exact.stream.norm() < 0.1


def test_progress_counts_prompts() -> None:
    seen: list[int] = []
    compute_reference(tiny("llama"), [[1, 2], [3]], "float32", progress=seen.append)
    assert seen == [1, 2]


class _TwoLists(torch.nn.Module):
    """A decoder whose layers are also listed, reversed, under a shorter name."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Linear(4, 4) for _ in range(3)]
        self.backwards = torch.nn.ModuleList(reversed(layers))
        self.unused = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.text = torch.nn.Module()
        self.text.blocks = torch.nn.ModuleList(layers)

    def forward(self, input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        states = torch.ones(1, input_ids.shape[1], 4)
        for layer in self.text.blocks:
            states = layer(states)
        return states


def test_the_layer_list_is_the_one_that_runs_in_order() -> None:
    network = _TwoLists()
    name, layers = _decoder_layers(network, [3], [1, 2])
    assert name == "text.blocks"
    assert layers == list(network.text.blocks)
    with pytest.raises(ReferenceFailed, match="No list of 5 decoder layers"):
        _decoder_layers(network, [5], [1, 2])


def test_shapes_of_layer_outputs() -> None:
    states = torch.arange(24.0).reshape(1, 6, 4)
    assert torch.equal(_rows(states, 6, 0), states[0])
    assert torch.equal(_rows((states, None), 6, 0), states[0])
    streams = torch.stack([states, states + 1])
    assert torch.equal(_rows(streams, 6, 1), states[0] + 1)
    with pytest.raises(ReferenceFailed, match=r"shape \[6, 4\] for 5 tokens"):
        _rows(states, 5, 0)


def test_failures_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ReferenceFailed, match="has no config"):
        read_config(str(tmp_path))
    (tmp_path / "config.json").write_text(
        (Path(tiny("llama")) / "config.json").read_text()
    )
    with pytest.raises(ReferenceFailed, match="cannot load"):
        compute_reference(str(tmp_path), [[1, 2]], "float32")


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5_vl"])
def test_an_image_is_in_the_rows_of_its_tokens_from_the_first_layer_on(name: str):
    """Also where transformers has a class for the text model alone."""
    ids = [5, VISION_START, *[IMAGE] * 15, VISION_END, 6]
    marked = torch.tensor([[int(token == IMAGE) for token in ids]])
    generator = torch.Generator().manual_seed(0)
    extras = [
        {
            "pixel_values": torch.randn(60, 1536, generator=generator),
            "image_grid_thw": torch.tensor([[1, 10, 6]]),
            "mm_token_type_ids": marked,
        }
        for _ in range(2)
    ]
    one, other = compute_reference(tiny(name), [ids, ids], "float32", extras=extras)
    changed = (one.stream[0] - other.stream[0]).norm(dim=-1) > 0.1
    assert changed.tolist() == marked[0].bool().tolist()
