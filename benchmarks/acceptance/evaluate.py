"""How many tokens of a greedy target a drafter of speculators gets right in a row.

Takes a folder of samples with right states (hs_*.safetensors) and the token from which
on the target itself has written; prints JSON. Runs where speculators is installed.

With greedy decoding the target accepts a drafted token if it is its own choice, and
what comes after a wrong one counts for nothing. So one pass over text that the target
has written, in which the drafter is fed the right tokens, gives the same acceptance
length as decoding does.
"""

from __future__ import annotations

import specshim  # isort: skip  # noqa: F401  # before speculators: the targets' scale

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from speculators.losses import resolve_loss_config
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("verifier")
    parser.add_argument("samples", type=Path)
    parser.add_argument("--written-from", type=int, required=True)
    parser.add_argument("--drafted", type=int, default=3)
    options = parser.parse_args()
    config = Eagle3DraftModel.config_class.from_pretrained(options.checkpoint)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(
        options.checkpoint, config=config, verifier=options.verifier
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device, torch.float32).eval()
    right, total = torch.zeros(options.drafted), torch.zeros(options.drafted)
    agreed: list[bool] = []
    for path in sorted(options.samples.glob("hs_*.safetensors")):
        batch = as_batch(path, options.written_from, device)
        agreed += choices(model, path, options.written_from, device)
        with torch.no_grad():
            *_, metrics = model(
                **batch,
                ttt_steps=options.drafted,
                loss_config=resolve_loss_config("kl_div", "eager"),
            )
        for step in range(options.drafted):
            right[step] += metrics[f"full_acc_{step}_sum"].cpu()
            total[step] += metrics[f"full_acc_{step}_total"].cpu()
    rates = (right / total).tolist()
    found = {"length": 1 + sum(rates), "rates": rates, "of": int(total[0])}
    print(json.dumps(found | {"target_agrees": sum(agreed) / len(agreed)}))


def choices(model: Any, path: Path, written_from: int, device: str) -> list[bool]:
    """Whether the target's head, on the last layer's rows, names what it has written.

    If it often does not, the states, or the norm and the head on them, are wrong.
    """
    sample = load_file(path)
    rows = sample["hidden_states"][written_from - 1 : -1, -1].float().to(device)
    with torch.no_grad():
        named = model.verifier_lm_head(model.verifier_norm(rows)).argmax(-1).cpu()
    return [bool(same) for same in named == sample["token_ids"][written_from:]]


def as_batch(path: Path, written_from: int, device: str) -> dict[str, torch.Tensor]:
    """One sample as the trainer gives it to EAGLE-3; the mask on what is written."""
    sample = load_file(path)
    states, tokens = sample["hidden_states"].float(), sample["token_ids"]
    count = len(tokens)
    shifted = shift_batch(
        {
            "hidden_states": states[:, :-1].flatten(1),
            "verifier_last_hidden_states": states[:, -1],
            "input_ids": tokens,
            "loss_mask": torch.arange(count) >= written_from,
            "lengths": torch.tensor([count]),
            "position_ids": torch.arange(count),
        }
    )
    del shifted["lengths"]
    batch = {name: value.unsqueeze(0).to(device) for name, value in shifted.items()}
    return {**batch, "document_ids": torch.zeros_like(batch["input_ids"])}


if __name__ == "__main__":
    main()
