"""Trains a small Gated DeltaNet hybrid on the source of Python's standard library.

Runs where vLLM is installed; writes the model, its tokenizer and windows of text as
token ids: train.jsonl for the drafter, and heldout.jsonl, whose windows begin with
held-out text and go on with what the model writes.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next

from specshim.tiny_architectures import ARCHITECTURES

PROMPT = 64  # tokens of held-out text; the model writes the rest
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<mask>"]
SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "model_max_length": 2048,
    "clean_up_tokenization_spaces": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, default=128, help="of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--minutes", type=float, default=4, help="of training, at most")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--samples", type=int, default=256, help="for the drafter")
    parser.add_argument("--sample-length", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=16)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    random.seed(0)
    torch.manual_seed(0)
    files = texts(int(options.megabytes * 2**20))
    tokenizer = write_tokenizer(options.folder, files, options.vocabulary)
    encoded = [found.ids for found in tokenizer.encode_batch(files)]
    cut = max(1, len(encoded) // 20)
    heldout, seen = flat(encoded[:cut]), flat(encoded[cut:])
    model = train(options, torch.tensor(seen), torch.tensor(heldout))
    model.to(torch.bfloat16).save_pretrained(options.folder)
    # config.json by hand, as in specshim.tiny: every release reads it.
    write_config(options, options.folder)
    (options.folder / "generation_config.json").unlink(missing_ok=True)
    length = options.sample_length
    samples = windows(torch.tensor(seen), options.samples, length - 1)
    write_rows(options.folder / "train.jsonl", samples.tolist())
    prompts = windows(torch.tensor(heldout), options.prompts, PROMPT - 1)
    write_rows(options.folder / "heldout.jsonl", continued(model, prompts, length))


def continued(model: Any, prompts: torch.Tensor, length: int) -> list[list[int]]:
    """``prompts`` with what the model writes after them, greedily, to ``length``.

    Here and not by the server: vLLM 0.24.0's CPU build writes nonsense after the first
    token of a GDN model.
    """
    tokens = prompts.to(model.device)
    with torch.no_grad():
        while tokens.shape[1] < length:
            best = model(input_ids=tokens, logits_to_keep=1).logits[:, -1].argmax(-1)
            tokens = torch.cat([tokens, best.unsqueeze(1)], dim=1)
    found: list[list[int]] = tokens.tolist()
    return found


def texts(size: int) -> list[str]:
    """Files of the standard library in random order, ``size`` characters of them."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    paths += sorted(Path(sysconfig.get_path("stdlib")).glob("[a-r]*/*.py"))
    paths = [path for path in paths if "site-packages" not in path.parts]
    random.shuffle(paths)
    found: list[str] = []
    for path in paths:
        found.append(path.read_text(errors="replace"))
        if sum(map(len, found)) > size:
            break
    return found


def flat(parts: list[list[int]]) -> list[int]:
    return [token for part in parts for token in part]


def write_tokenizer(folder: Path, files: list[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(files, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(SETTINGS, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text)
    return tokenizer


def write_config(options: argparse.Namespace, folder: Path) -> None:
    row: dict[str, Any] = dict(ARCHITECTURES["qwen3_next"].config)
    row |= {
        "vocab_size": options.vocabulary,
        "hidden_size": options.hidden,
        "intermediate_size": 3 * options.hidden,
        "num_hidden_layers": options.layers,
        # Dense but for the first layer: vLLM's Qwen3-Next wants some experts.
        "mlp_only_layers": list(range(1, options.layers)),
        "moe_intermediate_size": options.hidden,
        "shared_expert_intermediate_size": options.hidden,
        "num_attention_heads": options.hidden // 32,
        "num_key_value_heads": options.hidden // 64,
        "linear_num_key_heads": options.hidden // 128,
        "linear_num_value_heads": options.hidden // 64,
        "layer_types": [
            "full_attention" if i % 4 == 3 else "linear_attention"
            for i in range(options.layers)
        ],
        "unk_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    }
    (folder / "config.json").write_text(json.dumps(row, indent=2) + "\n")


def train(
    options: argparse.Namespace, seen: torch.Tensor, heldout: torch.Tensor
) -> Any:
    write_config(options, options.folder)
    config = AutoConfig.from_pretrained(options.folder)
    # In plain torch a chunk is a loop over its tokens: short ones take fewer kernels.
    modeling_qwen3_next.torch_chunk_gated_delta_rule = functools.partial(
        modeling_qwen3_next.torch_chunk_gated_delta_rule, chunk_size=16
    )
    model = Qwen3NextForCausalLM(config).to(options.device, torch.float32)
    model.set_experts_implementation("eager")  # the others take no autocast
    rate = 2e-3 * (128 / options.hidden) ** 0.5
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    start, step, said = time.monotonic(), 0, 0.0
    limit = options.minutes * 60
    while (spent := time.monotonic() - start) < limit:
        # Warm up for 20 steps, then fall with the time that is left.
        factor = min((step + 1) / 20, max(1 - spent / limit, 0.02))
        optimizer.param_groups[0]["lr"] = rate * factor
        loss = loss_of(model, windows(seen, options.batch, options.length), options)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step == 1 or spent - said > 15:
            said = spent
            print(f"{spent:4.0f} s, step {step}: loss {float(loss):.3f}", flush=True)
    with torch.no_grad():
        unseen = float(loss_of(model, windows(heldout, 32, options.length), options))
    print(f"toy: {step} steps, heldout loss {unseen:.3f} nats", flush=True)
    return model


def loss_of(
    model: Any, batch: torch.Tensor, options: argparse.Namespace
) -> torch.Tensor:
    batch = batch.to(options.device)
    with torch.autocast(options.device.split(":")[0], dtype=torch.bfloat16):
        logits = model(input_ids=batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), batch[:, 1:].flatten()
    )


def windows(tokens: torch.Tensor, count: int, length: int) -> torch.Tensor:
    starts = torch.randint(0, len(tokens) - length - 1, (count,))
    return torch.stack([tokens[start : start + length + 1] for start in starts])


def write_rows(path: Path, samples: list[list[int]]) -> None:
    rows = [{"input_ids": ids, "loss_mask": [1] * len(ids)} for ids in samples]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


if __name__ == "__main__":
    main()
