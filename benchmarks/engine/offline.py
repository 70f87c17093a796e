"""``vllm.LLM`` in a process of its own, told by lines of JSON on a socket.

    python offline.py SOCKET

First line: the engine's arguments. Then {"do": "prefill" | "decode" | "states", ...},
an answer for each, until the other side closes.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(sys.argv[1])
        lines = link.makefile("rw")
        from vllm import LLM

        llm = LLM(skip_tokenizer_init=True, **json.loads(lines.readline()))
        cache = llm.llm_engine.vllm_config.cache_config
        answer: Any = {"blocks": cache.num_gpu_blocks}
        while True:
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
            asked = lines.readline()
            if not asked:
                return
            job = json.loads(asked)
            answer = _DO[job.pop("do")](llm, **job)


def generate(llm: Any, prompts: list[list[int]], tokens: int) -> Any:
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, detokenize=False, ignore_eos=True, max_tokens=tokens
    )
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(given, sampling, use_tqdm=False)


def prefill(llm: Any, prompts: list[list[int]]) -> dict[str, Any]:
    """Begin and end by the clock, and what was said of each sample."""
    start = time.time()
    outputs = generate(llm, prompts, 1)
    end = time.time()
    said = [getattr(output, "kv_transfer_params", None) or {} for output in outputs]
    return {"start": start, "end": end, "said": said}


def decode(llm: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Seconds between two tokens of each request, by the engine core's clock."""
    found = []
    outputs = generate(llm, prompts, tokens)
    for output in outputs:
        stats = output.metrics
        seconds = stats.last_token_ts - stats.first_token_ts
        found.append(seconds / (len(output.outputs[0].token_ids) - 1))
    said = [getattr(output, "kv_transfer_params", None) or {} for output in outputs]
    return {"seconds": found, "said": said}


def states(
    llm: Any, prompts: list[list[int]], layer_ids: list[int], layers: int, out: str
) -> dict[str, Any]:
    """The reference: what hooks see of each prompt alone, in a file.

    Eager, in this process, without anything of specshim. An id stands for the layer
    before it, whose output is (states, residual) in the models measured here.
    """
    import torch

    seen: dict[int, list[Any]] = {}

    def hook(layer_id: int) -> Any:
        def keep(_: Any, __: Any, output: Any) -> None:
            parts = output if isinstance(output, tuple) else (output,)
            whole = sum(part.float() for part in parts[:2] if part is not None)
            seen[layer_id].append(whole.to(parts[0].dtype).cpu())

        return keep

    def attach(model: Any) -> None:
        (found,) = (
            module
            for name, module in model.named_modules()
            if name.endswith("layers") and len(list(module.children())) == layers
        )
        for layer_id in layer_ids:
            found[layer_id - 1].register_forward_hook(hook(layer_id))

    llm.apply_model(attach)
    rows = []
    for prompt in prompts:
        seen.update({layer_id: [] for layer_id in layer_ids})
        generate(llm, [prompt], 1)
        every = [torch.cat(seen[layer_id])[: len(prompt)] for layer_id in layer_ids]
        rows.append(torch.stack(every, dim=1))
    torch.save(rows, out)
    return {"out": out}


_DO: dict[str, Callable[..., Any]] = {
    "prefill": prefill,
    "decode": decode,
    "states": states,
}


if __name__ == "__main__":
    main()
