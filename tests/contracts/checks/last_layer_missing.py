"""The last of DeepSeek-V3's layers is what the first output token follows from."""

import os
from dataclasses import replace

os.environ["VLLM_MLA_DISABLE"] = "1"  # vLLM has no MLA on the CPU

import torch
from extracting_llm import extract, predicted

from specshim.tiny import ARCHITECTURES


def main() -> None:
    # Without experts: vLLM 0.24 cannot run them in float32 on every CPU.
    row = ARCHITECTURES["deepseek_v3"]
    config = {**row.config, "first_k_dense_replace": row.config["num_hidden_layers"]}
    ARCHITECTURES["dense"] = replace(row, name="dense", config=config)
    weights, samples = extract("dense", [4, 8])
    for states, token in samples:
        assert not torch.equal(states[:, 0], states[:, 1]), "layer 4 in both places"
        assert predicted(weights, states[-1, 1]) == token


if __name__ == "__main__":
    main()
