"""Compare ``vllm.LLM`` with transformers, layer by layer, wherever both are installed.

    python tests/load/compare_offline.py --tiny llama --device cuda \
        --engine '{"pipeline_parallel_size": 2, "dtype": "bfloat16"}'

Prompts of several chunks, then the same with output tokens. Prints for each layer the
distance of the worst sample to float32, and that of transformers in the engine's dtype;
exit code 1 where a sample is missing or further away than twice that and 1e-5.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from stock_request import stock_request


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder with weights")
    parser.add_argument("--tiny", default="llama", help="or a tiny model of this name")
    parser.add_argument("--layers", type=int, nargs="+", help="ids; default: every one")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--longest", type=int, default=900)
    parser.add_argument("--device", default="cpu", help="of the reference")
    parser.add_argument("--engine", type=json.loads, default={}, help="JSON")
    parser.add_argument("--storage", help="default: a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return compare(args, Path(folder))


def compare(args: argparse.Namespace, folder: Path) -> int:
    from safetensors.torch import load_file

    from specshim.reference import compute_reference, read_config
    from specshim.tiny import ensure_tiny_model

    model = args.model or str(ensure_tiny_model(args.tiny, folder))
    config = read_config(model)
    text = getattr(config, "text_config", config)
    ids = args.layers or list(range(text.num_hidden_layers + 1))
    source = random.Random(0)
    prompts = [
        [source.randrange(3, 400) for _ in range(source.randrange(1, args.longest))]
        for _ in range(args.prompts)
    ]
    storage = Path(args.storage or folder / "hs")
    answers = extract(args.engine, model, ids, prompts, storage, args.longest)
    sequences = [ids for ids, _ in answers]
    exact = compute_reference(model, sequences, "float32", device=args.device)
    dtype = str(args.engine.get("dtype", "bfloat16"))
    few = sequences[:16]
    near = compute_reference(model, few, dtype, device=args.device)
    worst, own = [0.0] * len(ids), [0.0] * len(ids)
    missing = wrong = 0
    for states, found in zip(exact, near, strict=False):
        apart = distance(found.stream[ids], states.stream[ids])
        own = [max(a, float(b)) for a, b in zip(own, apart, strict=True)]
    allowed = [max(1e-5, 2 * value) for value in own]
    for (sequence, path), states in zip(answers, exact, strict=True):
        if not Path(path).exists():
            print(f"missing: {path}")
            missing += 1
            continue
        loaded = load_file(path)
        assert loaded["token_ids"].tolist() == list(sequence)
        apart = distance(loaded["hidden_states"].transpose(0, 1), states.stream[ids])
        wrong += any(float(a) > b for a, b in zip(apart, allowed, strict=True))
        worst = [max(a, float(b)) for a, b in zip(worst, apart, strict=True)]
    for layer, ours, theirs in zip(ids, worst, own, strict=True):
        print(f"layer {layer:3d}  worst {ours:.3g}  transformers {dtype} {theirs:.3g}")
    rows = sum(map(len, sequences))
    print(f"{len(answers)} samples, {rows} rows: {missing} missing, {wrong} wrong")
    return 1 if missing or wrong else 0


def distance(actual: Any, expected: Any) -> Any:
    """Relative error of each layer, of [layers, tokens, hidden]."""
    apart = (actual.float() - expected.float()).norm(dim=(1, 2))
    return apart / expected.float().norm(dim=(1, 2)).clamp_min(1e-12)


def extract(
    engine: dict[str, Any],
    model: str,
    ids: list[int],
    prompts: list[list[int]],
    storage: Path,
    longest: int,
) -> list[tuple[list[int], str]]:
    """Token ids and file of each sample."""
    from vllm import LLM, SamplingParams

    options = {
        "max_model_len": longest + 64,
        "max_num_batched_tokens": 256,
        **stock_request(storage, ids),
        **engine,
    }
    llm = LLM(model=model, skip_tokenizer_init=True, **options)
    output = {"kv_transfer_params": {"include_output_tokens": True}}
    answers = []
    for tokens, more in ((1, {}), (4, {"extra_args": output})):
        sampling = SamplingParams(
            temperature=0, detokenize=False, ignore_eos=True, max_tokens=tokens, **more
        )
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        start = time.monotonic()
        outputs = llm.generate(given, sampling, use_tqdm=False)
        rows = sum(map(len, prompts))
        print(f"{rows / (time.monotonic() - start):.0f} prompt tokens per second")
        for prompt, found in zip(prompts, outputs, strict=True):
            said = found.kv_transfer_params or {}
            path = said.get("hidden_states_path", "not told")
            written = list(found.outputs[0].token_ids)[:-1] if more else []
            answers.append(([*prompt, *written], path))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not all(Path(p).exists() for _, p in answers):
        time.sleep(0.05)
    return answers


if __name__ == "__main__":
    sys.exit(main())
