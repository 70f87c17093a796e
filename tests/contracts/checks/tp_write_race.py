"""Of two tensor-parallel ranks, one must write the file."""

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

from stock_steps import serve, step, wrong

# At exit Python's tracker of shared memory would warn below the error.
os.environ["PYTHONWARNINGS"] = "ignore"

PROMPT = {"prompt": list(range(50, 70))}


def rank_of(rank: int, folder: Path, port: int, other_is_done: Any) -> Any:
    server = serve(
        folder,
        rank=rank,
        port=port,
        tensor_parallel_size=2,
        enable_chunked_prefill=False,
    )
    server.add("prompt", PROMPT["prompt"])
    if rank == 0:
        other_is_done.wait(60)
        assert not list(folder.glob("*.safetensors*")), "rank 1 has written"
    step(server)
    if rank == 1:
        if list(folder.glob("*.safetensors*")):
            wrong(server, PROMPT)  # waits until all is written
        other_is_done.set()
    return server


def main() -> None:
    from vllm.utils.network_utils import get_open_port

    folder = Path(tempfile.mkdtemp())
    context = multiprocessing.get_context("fork")
    done, port = context.Event(), get_open_port()
    other = context.Process(target=rank_of, args=(1, folder, port, done))
    other.start()
    server = rank_of(0, folder, port, done)
    other.join(60)
    found = wrong(server, PROMPT)
    assert not found, "; ".join(found)


if __name__ == "__main__":
    main()
