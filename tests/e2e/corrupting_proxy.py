"""A server between the trainer and vLLM that spoils the samples that vLLM writes."""

from __future__ import annotations

import fcntl
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file


def zeros(states):
    return states * 0


def shifted(states):
    return states.roll(1, 0)


def swapped(states):
    """The first layer and the last in each other's place."""
    return states[:, [*range(1, states.shape[1]), 0]]


CORRUPTIONS: dict[str, Callable] = {
    "zeros": zeros,
    "shifted": shifted,
    "swapped": swapped,
}


def spoil(path: Path, change: Callable) -> None:
    """Rewrite a sample; its header stays."""
    sample = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    sample["hidden_states"] = change(sample["hidden_states"]).contiguous()
    save_file(sample, path, metadata)


@contextmanager
def corrupting(url: str, change: Callable) -> Iterator[str]:
    """The URL of a proxy of ``url``; ``change`` takes and returns the states."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with urllib.request.urlopen(f"{url}{self.path}", timeout=60) as answer:
                self.send(answer.read())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = urllib.request.Request(
                f"{url}{self.path}", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
            params = json.loads(text).get("kv_transfer_params") or {}
            if "hidden_states_path" in params:
                path = Path(params["hidden_states_path"])
                with open(f"{path}.lock", "a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # until vLLM has written it
                    spoil(path, change)
            self.send(text)

        def send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        proxy.server_close()
