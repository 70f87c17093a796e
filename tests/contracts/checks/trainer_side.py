"""A dataset of speculators, samples for it, and a server's answers to its requests."""

import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

TOKENS, LAYERS, HIDDEN = 24, 4, 64
MODEL = "meta-llama/Llama-3.1-8B"


def prompt(row: int) -> list[int]:
    return list(range(100 * row, 100 * row + TOKENS))


def states(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(TOKENS, LAYERS, HIDDEN, generator=generator)
    return steps.cumsum(1).bfloat16()


def write(path: Path, hidden: torch.Tensor, row: int, **header: str) -> Path:
    """A sample as the server writes it, with header metadata if there is any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"hidden_states": hidden, "token_ids": torch.tensor(prompt(row))}
    save_file(tensors, path, header or None)
    return path


def prepared(folder: Path, rows: int = 4) -> Path:
    """The preprocessed data set that speculators reads, with ``rows`` prompts."""
    from datasets import Dataset

    columns = {
        "input_ids": [prompt(row) for row in range(rows)],
        "loss_mask": [[1] * TOKENS for _ in range(rows)],
        "seq_len": [TOKENS] * rows,
    }
    Dataset.from_dict(columns).with_format("torch").save_to_disk(str(folder))
    return folder


def arrow_dataset(folder: Path, **more: Any) -> Any:
    """The real ArrowDataset of the installed release on ``prepared(folder)``."""
    from speculators.train.data import ArrowDataset

    known = inspect.signature(ArrowDataset).parameters
    # 0.5 has no first file index where the whole data set is taken.
    split = {"split_ratio": 0.99} if "split_ratio" in known else {}
    return ArrowDataset(max_len=64, datapath=str(folder), **split, **more)


@contextmanager
def server(answer: Callable[[list[int]], str]) -> Iterator[str]:
    """An endpoint that answers completions with the path that ``answer`` returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            tokens = json.loads(self.rfile.read(size))["prompt"]
            choice = {"index": 0, "text": "", "finish_reason": "length"}
            self.send(
                {
                    "id": "1",
                    "object": "text_completion",
                    "created": 0,
                    "model": MODEL,
                    "choices": [{**choice, "prompt_token_ids": tokens}],
                    "kv_transfer_params": {"hidden_states_path": answer(tokens)},
                }
            )

        def send(self, data: dict[str, Any]) -> None:
            body = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1"
    finally:
        http.shutdown()
