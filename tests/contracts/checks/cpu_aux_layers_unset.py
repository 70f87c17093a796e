"""A server that extracts comes up on the CPU, to where its memory is measured."""

import os
import tempfile
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the error comes here
from stock_server import stock_arguments
from vllm import LLM


def main() -> None:
    arguments = stock_arguments(Path(tempfile.mkdtemp()))
    LLM(
        **arguments,
        load_format="dummy",
        enforce_eager=True,
        enable_chunked_prefill=False,
        max_num_batched_tokens=128,
    )


if __name__ == "__main__":
    main()
