"""A drafter's targets are what the verifier says, on its last layer's states."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from specshim.tiny import ensure_tiny_model, quiet_transformers

KNOWN = 24  # tokens of the drafter's vocabulary


def verifier(name: str, folder: Path) -> tuple[Path, Any]:
    """A tiny model of random weights, those of the final norm neither 0 nor 1."""
    made = ensure_tiny_model(name, folder)
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
        with torch.no_grad():
            torch.manual_seed(0)
            model.model.norm.weight.uniform_(0.2, 0.8)
        model.save_pretrained(folder / name)
    return folder / name, model.eval()


def said(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """States before the final norm, and the logits that the model makes of them."""
    states: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(
        lambda _, given: states.append(given[0])
    )
    with torch.no_grad():
        logits = model(torch.arange(5, 37)[None], use_cache=False).logits
    hook.remove()
    return states[-1], logits


def drafter(kind: Any, family: Any, model: Any, folder: Path) -> Any:
    """As the trainer makes it, for the first ``KNOWN`` tokens."""
    theirs = model.config
    shape = family(
        hidden_size=theirs.hidden_size,
        vocab_size=theirs.vocab_size,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        rms_norm_eps=theirs.rms_norm_eps,
    )
    return kind.from_training_args(
        shape,
        t2d=torch.arange(theirs.vocab_size) < KNOWN,
        d2t=torch.zeros(KNOWN, dtype=torch.long),
        draft_vocab_size=KNOWN,
        norm_before_residual=False,
        ttt_steps=1,
        mask_token_id=0,
        target_layer_ids=[1, 2, 3],
        verifier_name_or_path=str(folder),
    )


def off(made: Any, states: torch.Tensor, logits: torch.Tensor) -> float:
    """How far the targets are off, by the largest of the verifier's own logits."""
    with torch.no_grad():
        targets = made.verifier_lm_head(made.verifier_norm(states))
    right = logits[..., :KNOWN]
    return float((targets - right).abs().max() / right.abs().max())


def hold(made: Any, name: str, truth: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Right when made, loaded again and read from its checkpoint, which has no norm."""
    from safetensors import safe_open

    kind, kept = type(made), Path(tempfile.mkdtemp())
    far = {"made": off(made, *truth)}
    made.load_verifier_weights()
    far["again"] = off(made, *truth)
    assert not made.verifier_norm.weight.requires_grad
    made.save_pretrained(kept)
    with safe_open(kept / "model.safetensors", "pt") as file:
        assert "verifier_norm.weight" not in set(file.keys())
    mapping = {name: getattr(made, name) for name in ("t2d", "d2t")}
    made = kind.from_pretrained(kept, **mapping)
    far["read"] = off(made, *truth)
    assert max(far.values()) < 1e-5, f"{kind.__name__} for {name} is off by {far}"


def main() -> None:
    from speculators.models.dflash.core import DFlashDraftModel
    from speculators.models.eagle3.core import Eagle3DraftModel

    folder = Path(tempfile.mkdtemp())
    for name in ("llama", "gemma3", "qwen3_next"):
        path, model = verifier(name, folder)
        truth = said(model)
        hold(drafter(Eagle3DraftModel, LlamaConfig, model, path), name, truth)
        made = drafter(DFlashDraftModel, Qwen3Config, model, path)
        if hasattr(made, "verifier_norm"):  # from 0.6 on; in 0.9 right for Gemma
            hold(made, name, truth)


if __name__ == "__main__":
    main()
