"""Tiny models: complete, the same each time, made once, loadable."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file
from standin import every_tiny_model, reference, tiny

from specshim.tiny import ARCHITECTURES, TinyModelError, ensure_tiny_model

every = pytest.mark.parametrize("name", every_tiny_model())


@every
def test_loads_without_a_missing_or_left_over_weight(name: str) -> None:
    spec = ARCHITECTURES[name]
    made = getattr(transformers, spec.builder or spec.config["architectures"][0])
    model, info = made.from_pretrained(tiny(name), output_loading_info=True)
    assert {key: len(value) for key, value in info.items() if len(value)} == {}
    assert str(model.dtype) == f"torch.{spec.config['dtype']}"


@every
def test_each_layer_moves_the_states(name: str) -> None:
    for states in reference(name, "float32"):
        for before, after in zip(states.stream, states.stream[1:], strict=False):
            assert (after - before).norm() > 0.1 * after.norm()
        assert states.stream.isfinite().all()


def test_made_once_and_the_same_each_time(tmp_path: Path) -> None:
    built: list[str] = []
    first = ensure_tiny_model("llama", tmp_path / "a", on_build=built.append)
    again = ensure_tiny_model("llama", tmp_path / "a", on_build=built.append)
    other = ensure_tiny_model("llama", tmp_path / "b", on_build=built.append)
    reseeded = ensure_tiny_model("llama", tmp_path / "b", seed=1)
    assert (first, built) == (again, ["llama", "llama"])
    assert first.name == other.name != reseeded.name
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert all(
        (first / name).read_bytes() == (other / name).read_bytes() for name in names
    )
    weights, others = (load_file(p / names[1]) for p in (first, reseeded))
    key = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(weights[key], others[key])


def test_the_seed_of_the_caller_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    ensure_tiny_model("llama", tmp_path)
    assert torch.equal(torch.rand(4), wanted)


def test_several_at_once_give_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        made = set(pool.map(lambda _: ensure_tiny_model("llama", tmp_path), range(3)))
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in made}
    assert len(made) == 1


def test_a_draft_that_was_cut_off_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / ensure_tiny_model("llama", tmp_path / "x").name).mkdir()
    made = ensure_tiny_model("llama", tmp_path)
    assert (made / "model.safetensors").is_file()


def test_tokenizer_and_chat_template() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("qwen3"))
    assert tokenizer("w1 w507 what")["input_ids"] == [1, 507, 508]
    chat = [{"role": "user", "content": "w3 w4"}]
    text = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    assert tokenizer(text)["input_ids"] == [509, 3, 4, 510, 509]
    assert tokenizer.decode([3, 4]) == "w3 w4"


def test_config_is_the_row_and_nothing_else() -> None:
    config = json.loads((Path(tiny("gemma4")) / "config.json").read_text())
    assert config == ARCHITECTURES["gemma4"].config


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(
        TinyModelError, match=r"no tiny model named 'gpt9'; choose .*llama"
    ):
        ensure_tiny_model("gpt9", tmp_path)
