"""Runs in a vLLM environment: what decoder layers give, by plain forward hooks.

Standard input: {"engine_args": {...}, "prompts": [[ids]], "layer_ids": [...], "folder":
path}. One prompt at a time and one output token, so that a layer's rows follow one
another; written as ``<number>.safetensors``, ``rows`` ``[tokens, layers, hidden]``.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    import torch
    from safetensors.torch import save_file
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    llm = LLM(skip_tokenizer_init=True, **job["engine_args"])
    core: Any = llm.llm_engine.engine_core.engine_core
    model = core.model_executor.driver_worker.worker.model_runner.model
    seen: dict[int, list[Any]] = {i: [] for i in job["layer_ids"]}

    def record(layer_id: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            # These families: hidden states, and the residual that is still to be added.
            seen[layer_id].append(sum(output[1:], output[0]).clone())

        return hook

    for layer_id in seen:
        model.model.layers[layer_id - 1].register_forward_hook(record(layer_id))
    sampling = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    for number, prompt in enumerate(job["prompts"]):
        llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        rows = [torch.cat(chunks)[: len(prompt)] for chunks in seen.values()]
        save_file(
            {"rows": torch.stack(rows, 1).contiguous()},
            f"{job['folder']}/{number}.safetensors",
        )
        for chunks in seen.values():
            chunks.clear()


if __name__ == "__main__":
    main()
