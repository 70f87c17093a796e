"""Runs in a vLLM environment: ``vllm.LLM`` with given arguments and prompts.

Standard input: {"engine_args": {...}, "calls": [{"prompts": [[ids]], "sampling": {...},
"embed_seed": null}]}. Output: a line "RESULT " + JSON, per call and prompt the
``kv_transfer_params`` and the output's token ids. With ``embed_seed`` the prompts are
embeddings, rows of normal noise as many as the prompt has ids.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def wait_for_files(outputs: list) -> None:
    """As any client would, before the engine is let go."""
    named = [output.kv_transfer_params or {} for output in outputs]
    paths = [p["hidden_states_path"] for p in named if "hidden_states_path" in p]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not all(Path(p).exists() for p in paths):
        time.sleep(0.02)


def main() -> None:
    import torch
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    llm = LLM(skip_tokenizer_init=True, **job["engine_args"])
    hidden = llm.llm_engine.model_config.get_hidden_size()
    dtype = llm.llm_engine.model_config.dtype
    results = []
    for call in job["calls"]:
        seed = call.get("embed_seed")
        prompts = []
        for number, ids in enumerate(call["prompts"]):
            if seed is None:
                prompts.append({"prompt_token_ids": ids})
            else:
                generator = torch.Generator().manual_seed(seed + number)
                states = torch.randn(len(ids), hidden, generator=generator)
                prompts.append({"prompt_embeds": states.to(dtype)})
        sampling = SamplingParams(
            temperature=0, detokenize=False, ignore_eos=True, **call["sampling"]
        )
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        wait_for_files(outputs)
        results.append(
            [
                {
                    **(output.kv_transfer_params or {}),
                    "output_ids": list(output.outputs[0].token_ids),
                }
                for output in outputs
            ]
        )
    print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
