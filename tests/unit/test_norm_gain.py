"""The verifier's norm is read off transformers, and its weight given that meaning."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specshim import _norm_gain
from specshim.tiny_architectures import ARCHITECTURES

WIDTH = 8
STORED = torch.linspace(-0.5, 3, WIDTH)


def config(folder: Path, **fields: object) -> str:
    """A model's folder, of which nothing but the config is needed."""
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


def tiny(name: str, folder: Path) -> str:
    return config(folder, **ARCHITECTURES[name].config)


def load(norm: torch.nn.Module, weight: torch.Tensor = STORED) -> None:
    norm.load_state_dict({"weight": weight})


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("kind", "beyond"), [(LlamaRMSNorm, 0), (torch.nn.RMSNorm, 0), (Gemma3RMSNorm, 1)]
)
def test_a_norm_is_tried(kind: type, beyond: int, device: str) -> None:
    norm = kind(WIDTH, eps=1e-6).to(torch.bfloat16).to(device)
    assert _norm_gain.offset(norm) == beyond


@pytest.mark.parametrize("bias", [False, True])
def test_other_norms_are_not_taken_for_one(bias: bool) -> None:
    with pytest.raises(_norm_gain.Unreadable):
        _norm_gain.offset(torch.nn.LayerNorm(WIDTH, bias=bias))


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("llama", 0),
        ("gemma3n", 0),  # which has given it up
        ("lfm2", 0),  # embedding_norm
        ("falcon_h1", 0),  # final_layernorm
        ("mamba2", 0),  # norm_f, and a norm in each layer
        ("gemma3", 1),
        ("gemma3_vl", 1),
        ("qwen3_next", 1),
        ("qwen3_5_moe", 1),
    ],
)
def test_a_config_is_enough(name: str, beyond: int, tmp_path: Path) -> None:
    assert _norm_gain.offset_of_verifier(tiny(name, tmp_path)) == beyond


@pytest.mark.parametrize(
    ("name", "draft", "moved"),
    [
        ("gemma3", LlamaRMSNorm, 1),
        ("gemma3", Gemma3RMSNorm, 0),
        ("llama", LlamaRMSNorm, 0),
        ("llama", Gemma3RMSNorm, -1),
    ],
)
def test_what_is_loaded_gives_the_verifiers_gain(
    name: str, draft: type, moved: int, tmp_path: Path
) -> None:
    verifier, norm = tiny(name, tmp_path), draft(WIDTH)
    norm.weight.requires_grad = False
    for _ in range(2):  # once more is not twice as much
        with _norm_gain.meant(norm, verifier), _norm_gain.meant(norm, verifier):
            load(norm)
    assert torch.equal(norm.weight, STORED + moved)
    assert not norm.weight.requires_grad
    with _norm_gain.meant(norm, verifier):
        pass  # nothing is loaded
    assert torch.equal(norm.weight, STORED + moved)
    load(norm)  # by others, later
    assert torch.equal(norm.weight, STORED)


def test_the_dtype_is_kept(tmp_path: Path) -> None:
    norm = LlamaRMSNorm(WIDTH).to(torch.bfloat16)
    with _norm_gain.meant(norm, tiny("gemma3", tmp_path)):
        load(norm)
    assert torch.equal(norm.weight, STORED.bfloat16() + 1)
    assert norm.weight.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:for weight. copying from a non-meta parameter")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_holds_no_weight_is_left_alone(device: str, tmp_path: Path) -> None:
    norm = LlamaRMSNorm(WIDTH).to(device)
    with _norm_gain.meant(norm, tiny("gemma3", tmp_path)):
        load(norm, torch.where(STORED > 0, STORED, torch.nan))
    if device == "cpu":
        assert torch.equal(norm.weight[STORED > 0], STORED[STORED > 0])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model_type": "of_its_own", "auto_map": {"AutoConfig": "code.Config"}},
        ARCHITECTURES["cohere"].config,
    ],
    ids=["no model", "remote code", "LayerNorm"],
)
def test_what_cannot_be_read_is_left_alone_and_said_once(
    fields: dict, tmp_path: Path
) -> None:
    verifier, norm = config(tmp_path, **fields), LlamaRMSNorm(WIDTH)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(2):
            with _norm_gain.meant(norm, verifier):
                load(norm)
    (warning,) = [w for w in said if "specshim" in str(w.message)]
    text = str(warning.message)
    assert f"the gain of {verifier}'s final norm cannot be told" in text
    assert text.count("\n") == 0
    assert torch.equal(norm.weight, STORED)


def test_drafters_without_a_norm_are_passed_through() -> None:
    with _norm_gain.meant(None, "somewhere/something"):
        pass
