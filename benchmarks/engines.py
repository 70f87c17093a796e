"""Serving one mode, offline or over HTTP, so that both are measured the same way."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
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
from pathlib import Path
from typing import Any, Protocol

from packaging.version import Version

from benchmarks.cells import CONCURRENCY, MODES, Shape
from benchmarks.results import release_of
from specshim.server_process import (
    ServerFailed,
    free_port,
    running,
    wait_until_healthy,
)

ROOT = Path(__file__).parent.parent
_SCRIPTS = Path(__file__).parent / "engine"
_UNIX = socket.AF_UNIX
_NO_CHUNKS_UNTIL = "0.24"  # stock extraction before it refuses chunked prefill


@dataclass(frozen=True)
class Setup:
    """What a server is started with."""

    shape: Shape
    mode: str
    model: Path
    storage: Path
    work: Path
    longest: int  # tokens of a prompt
    batched: int  # max_num_batched_tokens
    device: str = "cuda"
    share: float = 0.9  # of the GPU's memory
    eager: bool = False
    sink_bytes: float = 0.0  # a second; 0: as fast as it goes
    start_seconds: float = 900.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        slow = "-slow" if self.sink_bytes else ""
        return f"{self.shape.name}-{self.mode}{slow}"

    @property
    def stats(self) -> Path:
        """Where the worker tells of its backlog."""
        return self.work / f"{self.name}.stats"


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


def arguments(setup: Setup) -> dict[str, Any]:
    """vLLM's arguments: the same for all modes, but for those of extraction."""
    found: dict[str, Any] = {
        "model": str(setup.model),
        "dtype": setup.shape.dtype,
        "max_model_len": setup.longest + 16,
        "max_num_batched_tokens": setup.batched,
        "enable_prefix_caching": False,
        **setup.shape.options,
    }
    release = release_of("vllm")
    if setup.shape.is_old(release):
        found.update(setup.shape.old_options)
    if setup.eager:
        found["enforce_eager"] = True
    if setup.device == "cuda":
        found["gpu_memory_utilization"] = setup.share
    if not setup.shape.tiny:
        found["load_format"] = "dummy"
    if MODES[setup.mode].extracts:
        found.update(_extraction(setup))
        if setup.mode == "stock" and Version(release) < Version(_NO_CHUNKS_UNTIL):
            found["enable_chunked_prefill"] = False
    return {**found, **setup.options}


def _extraction(setup: Setup) -> dict[str, Any]:
    """What speculators' launcher asks for."""
    ids = {"eagle_aux_hidden_state_layer_ids": list(setup.shape.layer_ids)}
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": ids},
        },
        "kv_transfer_config": {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(setup.storage)},
        },
    }


def flags(found: Mapping[str, Any]) -> list[str]:
    """The arguments on a command line."""
    written = []
    for name, value in found.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            written.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = json.dumps(value) if isinstance(value, dict | list) else str(value)
            written += [f"--{flag}", text]
    return written


def variables(setup: Setup) -> dict[str, str]:
    """The environment: nothing of ours but what the mode says."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECSHIM")}
    found = {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # only of use to the reference
        "SPECSHIM_BENCH_FILL": "1",
        **MODES[setup.mode].variables,
    }
    paths = [*plugin_path(setup.work), kept.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if setup.device == "cpu":
        found.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if setup.mode == "tap":
        found["SPECSHIM_BENCH_STATS"] = str(setup.stats)
    if setup.sink_bytes:
        found["SPECSHIM_BENCH_SINK_BYTES"] = str(setup.sink_bytes)
    return found


def plugin_path(work: Path) -> list[str]:
    """For PYTHONPATH: engine/specshim_bench.py with an entry point.

    And that of specshim, where it is not installed but read from this checkout.
    """
    folder = work / "plugin"
    info = folder / "specshim_bench-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    points, paths = ["specshim_bench = specshim_bench:register"], []
    there = importlib.metadata.entry_points(group="vllm.general_plugins")
    if "specshim" not in there.names:
        points.append("specshim = specshim.plugin:register")
        paths = [str(ROOT)]
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: specshim-bench\nVersion: 0\n"
    )
    text = "\n".join(["[vllm.general_plugins]", *points, ""])
    (info / "entry_points.txt").write_text(text)
    return [str(folder), str(_SCRIPTS), *paths]


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
        command = [sys.executable, str(_SCRIPTS / "offline.py"), where]
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


_LOGGED = {
    "kv_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "kv_gib": re.compile(r"Available KV cache memory: ([\d.]+) GiB"),
    "model_gib": re.compile(r"Model loading took ([\d.]+) GiB"),
    "graphs_gib": re.compile(r"Graph capturing finished in .* took ([\d.]+) GiB"),
    "graph_seconds": re.compile(r"Graph capturing finished in ([\d.]+) sec"),
    "compile_seconds": re.compile(r"torch.compile takes ([\d.]+) s in total"),
}


_CAPTURED = re.compile(r"Capturing CUDA graphs[^:]*?\(([^)]*)\): +100%[^/]*?(\d+)/")


def of_log(log: Path) -> dict[str, Any]:
    """What vLLM says of its memory, its graphs and its start, where it does."""
    text = log.read_text(errors="replace")
    found = {name: what.search(text) for name, what in _LOGGED.items()}
    said: dict[str, Any] = {
        name: float(match[1].replace(",", "")) for name, match in found.items() if match
    }
    graphs = {name: int(count) for name, count in _CAPTURED.findall(text)}
    return {**said, "graphs": graphs} if graphs else said


_ERROR = re.compile(r"\b(\w+(?:Error|Exception|Refused|Exit)): (.+)$")
_ECHOES = ("Engine core initialization failed", "Failed core proc")


def said_last(log: Path) -> str:
    """The error that a server ended with, as one line."""
    text = log.read_text(errors="replace") if log.exists() else ""
    found = [match for line in text.splitlines() if (match := _ERROR.search(line))]
    own = [m for m in found if not any(echo in m[2] for echo in _ECHOES)]
    if not own:
        return "The server did not come up; its log says nothing of an error."
    return f"{own[-1][1]}: {own[-1][2]}"[:600]


def served(setup: Setup, transport: str) -> Any:
    """The context manager that serves ``setup``."""
    return offline(setup) if transport == "offline" else http_server(setup)
