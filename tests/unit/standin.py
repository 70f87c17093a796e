"""For the tests of verify: tiny models, right samples, and a server that gives them.

The server is a real HTTP server that writes real files by the lock protocol; the
states in them come from transformers, so that a test decides what is wrong.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specshim.reference import PromptStates, compute_reference
from specshim.tiny import ARCHITECTURES, ensure_tiny_model
from specshim.verification.collect import Sample, random_prompts

LAYER_IDS = (0, 2, 4, 5, 8)


# Which kinds of models there are; all others are tried in the extended tests.
KINDS = (
    *("llama", "qwen3", "gemma3", "gemma4", "qwen3_5", "qwen3_next"),
    *("granite4", "lfm2", "deepseek_v3"),
)


def every_tiny_model() -> list[Any]:
    """Names for ``parametrize``; without those that transformers cannot make."""
    return [
        pytest.param(name, marks=() if name in KINDS else pytest.mark.extended)
        for name in sorted(ARCHITECTURES)
        if name not in UNREFERENCED
    ]


# Its layers run in loops: there is no one list to compare with.
UNREFERENCED = ("hrm_text",)


@functools.cache
def models_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="specshim-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def tiny(name: str) -> str:
    return str(ensure_tiny_model(name, models_folder()))


@functools.cache
def reference(name: str, dtype: str) -> list[PromptStates]:
    prompts = random_prompts(range(500), 4, 60, seed=7)
    return compute_reference(tiny(name), prompts, dtype)


def right_samples(
    name: str, dtype: str, layer_ids: Sequence[int] = LAYER_IDS
) -> list[Sample]:
    """What a server in ``dtype`` that computes as transformers does would deliver."""
    return [
        Sample(
            index=index,
            prompt=states.token_ids,
            token_ids=states.token_ids,
            states=states.stream[list(layer_ids)]
            .transpose(0, 1)
            .to(getattr(torch, dtype)),
            dtype=dtype,
        )
        for index, states in enumerate(reference(name, dtype))
    ]


@dataclass
class StandIn:
    """How the stand-in server behaves; tests set what they need."""

    model: str
    folder: Path
    dtype: str = "float32"
    layer_ids: Sequence[int] = LAYER_IDS
    metadata: dict[str, str] = field(default_factory=dict)
    corrupt: Callable[[int, torch.Tensor], torch.Tensor] = lambda number, states: states
    tokens: Callable[[list[int]], list[int]] = lambda prompt: prompt
    answer: Callable[[int], int] = lambda number: 200  # HTTP status of request number
    write_delay: float = 0.0  # seconds under the lock, after the answer
    write: Callable[[int], bool] = lambda number: True
    output: Sequence[int] = ()  # generated tokens, saved after the prompt's
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    def respond(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._order:
            number = len(self.requests)
            self.requests.append(body)
        status = self.answer(number)
        if status != 200:
            return status, {"error": {"message": "the engine is dead"}}
        path = self.folder / f"request-{number}.safetensors"
        lock = open(f"{path}.lock", "w")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(
            self.write_delay, self._write, (number, body, path, lock)
        ).start()
        choice = {"text": "", "prompt_token_ids": body["prompt"]}
        parameters = {"hidden_states_path": str(path)}
        return 200, {"choices": [choice], "kv_transfer_params": parameters}

    def __post_init__(self) -> None:
        self._order = threading.Lock()
        self._compute = threading.Lock()

    def _write(self, number: int, body: dict[str, Any], path: Path, lock: Any) -> None:
        with lock:
            if not self.write(number):
                return
            sequence = [*body["prompt"], *self.output]
            token_ids = self.tokens(sequence)
            with self._compute:
                [states] = compute_reference(self.model, [sequence], self.dtype)
            wanted = states.stream[list(self.layer_ids)].transpose(0, 1)
            tensors = {
                "hidden_states": self.corrupt(number, wanted)
                .to(getattr(torch, self.dtype))
                .contiguous(),
                "token_ids": torch.tensor(token_ids),
            }
            save_file(tensors, path, self.metadata)


@contextmanager
def serving(standin: StandIn, port: int = 0) -> Iterator[StandIn]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _send(self, status: int, content: Any) -> None:
            payload = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def do_GET(self) -> None:
            models = [{"id": "tiny", "max_model_len": 64}]
            self._send(200, {"data": models} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._send(*standin.respond(json.loads(self.rfile.read(length))))

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    standin.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield standin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":  # the demo's server: MODEL STATES PORT DTYPE
    model, folder, port, dtype = sys.argv[1:]
    compute_reference(model, [[1]], dtype)  # so that no request waits for imports
    metadata = {"layer_ids": json.dumps(LAYER_IDS)}
    standin = StandIn(model, Path(folder), dtype=dtype, metadata=metadata)
    with serving(standin, int(port)):
        threading.Event().wait()
