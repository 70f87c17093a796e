"""A real engine in this process: all files are there once generate() returns."""

import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from extracting_llm import PROMPTS, answers
from safetensors.torch import load_file


def main() -> None:
    _, outputs = answers("llama", [1, 2])
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        path = Path(output.kv_transfer_params["hidden_states_path"])
        if not path.exists():
            sys.exit(f"never written: {path}")
        assert load_file(path)["hidden_states"].shape[:2] == (len(prompt), 2)


if __name__ == "__main__":
    main()
