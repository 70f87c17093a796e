"""One family on this Python's vLLM: the tap's states against transformers.

Each function runs in a process of its own, with the engine in it, and gives a
dictionary of what it saw.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from family_runs import Run
from stand_ins import STAND_INS
from stock_request import stock_request
from with_image import numbers, pictured, verdict

REFUSED, CANNOT_START, NO_REFERENCE = "refused", "cannot start", "no reference"


def engine_args(run: Run, model: Path, dtype: str) -> dict[str, Any]:
    """What ``vllm.LLM`` is started with, but for the tap."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    known = AttentionBackendEnum.__members__
    options = {
        name: value
        for name, value in run.options.items()
        if name != "attention_backend" or value in known  # CPU_MLA is of 0.28
    }
    return {
        "model": str(model),
        "dtype": dtype,
        "max_model_len": 512,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "enforce_eager": "compiled" not in run.mode,
        "skip_tokenizer_init": True,
        **options,
    }


def dozen(seed: int) -> list[list[int]]:
    """Prompts of 1 to 180 random tokens; a step takes 64."""
    from specshim.verification.collect import random_prompts

    return random_prompts(range(3, 500), 12, 180, seed=seed)


def tapped(run: Run, folder: Path) -> dict[str, Any]:
    """Ask for a dozen prompts and compare every layer with transformers."""
    from specshim.reference import ReferenceFailed, compute_reference
    from specshim.tiny import ARCHITECTURES, TinyModelError, ensure_tiny_model
    from specshim.verification.compare import compare

    dtype = run.served_dtype
    prompts = dozen(run.seed)
    try:
        model = ensure_tiny_model(run.model, folder / "models")
        exact = compute_reference(str(model), prompts, "float32")
        rounded = None
        if dtype != "float32":
            rounded = compute_reference(str(model), prompts, dtype)
    except TinyModelError as error:
        return {"result": NO_REFERENCE, "error": str(error)}
    except ReferenceFailed as error:  # the tap may have something to say all the same
        exact, rounded, unknown = [], None, str(error)
    config = ARCHITECTURES[run.model].config
    count = config.get("num_layers", config.get("num_hidden_layers", 8))
    layer_ids = list(range(len(exact[0].stream) if exact else count + 1))
    args = {
        **engine_args(run, model, dtype),
        **stock_request(folder / "states" / run.model, layer_ids),
    }
    try:
        for name in run.stand_ins:
            STAND_INS[name]()
        samples, missing = generate(args, prompts, dtype)
    except BaseException as error:
        traceback.print_exc()  # to the family's log
        found = chain(error)
        refused = [e for e in found if type(e).__name__ == "TapRefused"]
        return {
            "result": REFUSED if refused else CANNOT_START,
            "error": str(refused[0]) if refused else sentence(found[-1]),
        }
    if not exact:
        return {"result": NO_REFERENCE, "error": unknown}
    if missing:
        return {"result": "wrong", "error": f"{len(missing)} fail: {missing[0]}"}
    seen = compare(samples, layer_ids, exact, rounded)
    answer: dict[str, Any] = {
        "result": verdict(seen),
        **numbers(seen),
        "layers": len(layer_ids),
    }
    if answer["result"] != "right":
        print("per layer", [(layer.layer_id, layer.worst) for layer in seen.layers])
        wrong = [f for f in seen.findings if f.wrong][:1]
        answer["error"] = "; ".join(f"{f.kind}: {f.text}" for f in wrong) or (
            "more than the rounding of float32: from layer to layer "
            + ", ".join(f"{layer.worst:.0e}" for layer in seen.layers)
        )
    return answer


def plain(run: Run, folder: Path) -> dict[str, Any]:
    """What vLLM does without specshim: log-probabilities against transformers'."""
    import torch
    import transformers
    from vllm import LLM, SamplingParams

    from specshim.tiny import ARCHITECTURES, ensure_tiny_model

    config = ARCHITECTURES[run.model].config
    model = ensure_tiny_model(run.model, folder / "models")
    network: Any = getattr(transformers, config["architectures"][0])
    network = network.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prompts = [prompt for prompt in dozen(run.seed) if len(prompt) > 8]
    try:
        for name in run.stand_ins:
            STAND_INS[name]()
        llm = LLM(**engine_args(run, model, run.served_dtype))
        sampling = SamplingParams(
            max_tokens=1, temperature=0, detokenize=False, prompt_logprobs=0
        )
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(asked, sampling, use_tqdm=False)
    except BaseException as error:
        traceback.print_exc()
        return {"plain": f"the same without specshim: {sentence(chain(error)[-1])}"}
    worst = 0.0
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            logits = network(torch.tensor([prompt]), use_cache=False).logits[0]
        expected = logits.log_softmax(-1)
        for place in range(1, len(prompt)):
            token = prompt[place]
            got = output.prompt_logprobs[place][token].logprob
            worst = max(worst, abs(got - float(expected[place - 1, token])))
    return {
        "plain": "without specshim it starts, and its log-probabilities of the prompt "
        f"differ from transformers' by up to {worst:.2g}"
    }


def chain(error: BaseException) -> list[BaseException]:
    """The error and what it came from, outermost first."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def sentence(error: BaseException) -> str:
    """The first line of what the error says, with its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:  # an assertion without a word: say where
        frame = traceback.extract_tb(error.__traceback__)[-1]
        lines = [f"{frame.name}: {frame.line}"]
    return f"{type(error).__name__}: {lines[0][:300]}"


def generate(
    args: dict[str, Any], prompts: Sequence[Sequence[int]], dtype: str
) -> tuple[list[Any], list[str]]:
    """Samples of all prompts, and a sentence for each that gave none."""
    from safetensors.torch import load_file
    from vllm import LLM, SamplingParams

    from specshim.verification.collect import Sample

    llm = LLM(**args)
    sampling = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs = llm.generate(asked, sampling, use_tqdm=False)
    samples, missing = [], []
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        answer = output.kv_transfer_params or {}
        path = Path(answer.get("hidden_states_path", "/nowhere"))
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            if "hidden_states_error" in answer:
                break
            time.sleep(0.02)
        if not path.exists():
            missing.append(str(answer.get("hidden_states_error", answer)))
            continue
        loaded = load_file(path)
        os.unlink(path)
        samples.append(
            Sample(
                index=index,
                prompt=tuple(prompt),
                token_ids=tuple(loaded["token_ids"].tolist()),
                states=loaded["hidden_states"],
                dtype=dtype,
            )
        )
    return samples, missing


CHECKS: dict[str, Callable[[Run, Path], dict[str, Any]]] = {
    "tapped": tapped,
    "pictured": pictured,
    "plain": plain,
}
