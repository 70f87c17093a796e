"""Serving one mode, offline or over HTTP, so that both are measured the same way."""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.cells import CONCURRENCY
from benchmarks.server_log import of_log, said_last
from benchmarks.setup import SCRIPTS, Setup, arguments, flags, variables
from specshim.server_process import (
    ServerFailed,
    free_port,
    running,
    wait_until_healthy,
)

_UNIX = socket.AF_UNIX


@dataclass
class Answers:
    """A measurement as the asking side saw it; seconds since the epoch."""

    start: float
    end: float
    said: list[dict[str, Any]]  # kv_transfer_params, in the order of the prompts
    errors: list[str] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """A file for each prompt; "" where none was named."""
        return [said.get("hidden_states_path", "") for said in self.said]


class Engine(Protocol):
    """A server of one mode."""

    pid: int
    facts: dict[str, Any]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Answers:
        """Ask for one token of each."""

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Something else that engine/offline.py does."""


class _Offline:
    def __init__(self, pid: int, link: Any) -> None:
        self.pid, self._link = pid, link
        self.facts: dict[str, Any] = {}

    def receive(self) -> dict[str, Any]:
        line = self._link.readline()
        if not line:
            raise ServerFailed("The engine's process ended.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send(self, said: Mapping[str, Any]) -> dict[str, Any]:
        self._link.write(json.dumps(said) + "\n")
        self._link.flush()
        return self.receive()

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        return self.send({"do": what, **more})

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Answers:
        return Answers(**self.ask("prefill", prompts=prompts))


@contextmanager
def offline(setup: Setup, **more: str) -> Iterator[Engine]:
    """``vllm.LLM`` in a process of its own; ``more`` are variables of it.

    Raises:
        ServerFailed: it did not come up, in one sentence.
    """
    log = setup.work / f"{setup.name}-offline.log"
    found = {**arguments(setup), "disable_log_stats": False}
    with tempfile.TemporaryDirectory() as short, socket.socket(_UNIX) as server:
        where = f"{short}/s"  # such names have at most a hundred characters
        command = [sys.executable, str(SCRIPTS / "offline.py"), where]
        server.bind(where)
        server.listen(1)
        server.settimeout(1.0)
        with running(command, log, {**variables(setup), **more}) as process:
            begin = time.monotonic()
            while True:
                try:
                    link, _ = server.accept()
                    break
                except TimeoutError:
                    if process.poll() is not None:
                        raise ServerFailed(said_last(log)) from None
            with link:
                link.settimeout(setup.start_seconds)
                engine = _Offline(process.pid, link.makefile("rw"))
                try:
                    engine.facts.update(engine.send(found))
                except (ServerFailed, OSError):
                    raise ServerFailed(said_last(log)) from None
                link.settimeout(None)
                engine.facts.update(of_log(log), start_seconds=time.monotonic() - begin)
                yield engine


class _Http:
    def __init__(self, pid: int, url: str, model: str) -> None:
        self.pid, self._model = pid, model
        self._netloc = urllib.parse.urlsplit(url).netloc
        self.facts: dict[str, Any] = {}

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        raise NotImplementedError(f"{what} is done offline")

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Answers:
        """CONCURRENCY requests at a time, as the trainer asks."""
        work: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        for number, prompt in enumerate(prompts):
            body = {"model": self._model, "prompt": list(prompt), "max_tokens": 1}
            text = json.dumps({**body, "temperature": 0}).encode()
            work.put((number, text))
        said: list[dict[str, Any]] = [{} for _ in prompts]
        errors: list[str] = []
        threads = [
            threading.Thread(target=self._ask_on, args=(work, said, errors))
            for _ in range(min(CONCURRENCY, len(prompts)))
        ]
        start = time.time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Answers(start, time.time(), said, errors)

    def _ask_on(
        self,
        work: queue.SimpleQueue[tuple[int, bytes]],
        said: list[dict[str, Any]],
        errors: list[str],
    ) -> None:
        link = http.client.HTTPConnection(self._netloc, timeout=600)
        headers = {"Content-Type": "application/json"}
        while True:
            try:
                number, body = work.get_nowait()
            except queue.Empty:
                link.close()
                return
            try:
                link.request("POST", "/v1/completions", body, headers)
                answer = link.getresponse()
                text = answer.read()
                if answer.status != 200:
                    raise OSError(f"status {answer.status}: {text[:200]!r}")
                said[number] = json.loads(text).get("kv_transfer_params") or {}
            except (OSError, http.client.HTTPException, ValueError) as error:
                errors.append(f"{type(error).__name__}: {error}")
                link.close()


@contextmanager
def http_server(setup: Setup) -> Iterator[Engine]:
    """vLLM's server on a free port.

    Raises:
        ServerFailed: it did not come up, in one sentence.
    """
    log = setup.work / f"{setup.name}-http.log"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--uvicorn-log-level", "warning"),
        *flags(arguments(setup)),
    ]
    with running(command, log, variables(setup)) as process:
        try:
            seconds = wait_until_healthy(process, url, setup.start_seconds)
        except ServerFailed:
            raise ServerFailed(said_last(log)) from None
        engine = _Http(process.pid, url, str(setup.model))
        engine.facts.update(of_log(log), start_seconds=seconds, blocks=_blocks(url))
        yield engine


def _blocks(url: str) -> int | None:
    """Of the KV cache, by the server's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = re.search(rb'num_gpu_blocks="(\d+)"', answer.read())
    return int(found[1]) if found else None


def served(setup: Setup, transport: str) -> Any:
    """The context manager that serves ``setup``."""
    return offline(setup) if transport == "offline" else http_server(setup)
