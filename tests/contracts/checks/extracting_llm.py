"""A real engine on the cache route, and what its last layer's states predict."""

import tempfile
import time
from pathlib import Path
from typing import Any

from stock_request import stock_request

PROMPTS = [[5, 9, 200, 31, 7, 77, 300], [12, 400, 8], [*range(20, 90)]]


def answers(model: str, layer_ids: list[int], **options: Any) -> tuple[Path, list[Any]]:
    """Folder of the tiny ``model``; what generate() returns for each prompt."""
    from vllm import LLM, SamplingParams

    from specshim.tiny import ensure_tiny_model

    folder = Path(tempfile.mkdtemp())
    weights = ensure_tiny_model(model, folder)
    llm = LLM(
        model=str(weights),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        enforce_eager=True,
        **stock_request(folder / "hs", layer_ids),
        **options,
    )
    sampling = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return weights, llm.generate(prompts, sampling, use_tqdm=False)


def extract(
    model: str, layer_ids: list[int], **options: Any
) -> tuple[Path, list[tuple[Any, int]]]:
    """Folder of the tiny ``model``; states and first output token of each prompt."""
    from safetensors.torch import load_file

    weights, outputs = answers(model, layer_ids, **options)
    found = []
    for output in outputs:
        path = Path(output.kv_transfer_params["hidden_states_path"])
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        states = load_file(path)["hidden_states"]
        found.append((states, output.outputs[0].token_ids[0]))
    return weights, found


def predicted(weights: Path, state: Any, *, gemma: bool = False) -> int:
    """The token that the last layer's ``state`` [hidden] leads to."""
    from safetensors.torch import load_file

    tensors = load_file(weights / "model.safetensors")
    scale = tensors["model.norm.weight"] + float(gemma)
    normed = state * (state.pow(2).mean() + 1e-6).rsqrt() * scale
    return int((tensors["lm_head.weight"] @ normed).argmax())
