"""The last of DeepSeek-V3's layers is what the first output token follows from."""

import os

os.environ["VLLM_MLA_DISABLE"] = "1"  # vLLM has no MLA on the CPU

import torch
from extracting_llm import extract, predicted


def main() -> None:
    weights, samples = extract("deepseek_v3", [4, 8])
    for states, token in samples:
        assert not torch.equal(states[:, 0], states[:, 1]), "layer 4 in both places"
        assert predicted(weights, states[-1, 1]) == token


if __name__ == "__main__":
    main()
