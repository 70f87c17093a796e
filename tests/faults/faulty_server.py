"""A real server under faults: its clients, its traces, what becomes of its samples."""

from __future__ import annotations

import http.client
import json
import os
import random
import select
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from e2e_values import LAYER_IDS
from serving import START_SECONDS, environment, python_of
from stock_request import stock_request
from tally import LOST, SURVIVED, TOLD, WRONG

from specshim.server_process import ServerFailed, free_port, running, wait_until_healthy

INJECT = Path(__file__).with_name("inject")
API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")
OPTIONS = (
    *("--dtype", "float32", "--max-model-len", "512", "--enforce-eager"),
    # Samples come in chunks, requests queue, and 20 blocks do for fewer than eight.
    *("--max-num-batched-tokens", "64", "--max-num-seqs", "8"),
    *("--block-size", "32", "--num-gpu-blocks-override", "20"),
)
ONE_PROCESS = ("--distributed-executor-backend", "uni")
"""Engine and worker in one process, as on one GPU; on the CPU vLLM makes it two."""


@dataclass(frozen=True)
class Traces:
    """What a server holds: its worker's descriptors and threads, and vLLM's blocks."""

    storage_descriptors: int
    descriptors: int
    threads: int
    blocks_in_use: float
    requests: float


@dataclass(frozen=True)
class Known:
    """Prompts and their reference, by the model's weights in transformers."""

    prompts: list[list[int]]
    states: dict[tuple[int, ...], Any]

    def is_right(self, sample: dict[str, Any]) -> bool:
        expected = self.states.get(tuple(sample["token_ids"].tolist()))
        actual = sample["hidden_states"]
        if expected is None or actual.shape != expected.shape:
            return False
        error = (actual.float() - expected).norm(dim=(0, 2)) / expected.norm(dim=(0, 2))
        return float(error.max()) < 1e-5


@dataclass
class FaultyServer:
    """A server whose system calls fail by the rules that :meth:`rules` sets."""

    url: str
    model: Path
    storage: Path
    known: Known
    process: subprocess.Popen[bytes]
    control: Path
    log: Path
    random: random.Random = field(default_factory=lambda: random.Random(5))
    waits: list[float] = field(default_factory=list)

    # Faults

    @contextmanager
    def rules(self, *rules: dict[str, Any]) -> Iterator[None]:
        """Within the block, these system calls fail; see inject/sitecustomize.py."""
        written = self.control.with_suffix(".new")
        written.write_text(json.dumps(rules))
        written.rename(self.control)
        try:
            yield
        finally:
            self.control.unlink()

    # Clients

    def ask(self, prompt: Sequence[int], **body: Any) -> dict[str, Any] | None:
        """``kv_transfer_params`` of an answer; None where the connection broke."""
        try:
            with urllib.request.urlopen(
                self._request(prompt, **body), timeout=120
            ) as r:
                return json.load(r)["kv_transfer_params"] or {}
        except (OSError, http.client.HTTPException):
            return None

    def _request(self, prompt: Sequence[int], **body: Any) -> urllib.request.Request:
        asked = {"model": str(self.model), "prompt": list(prompt), "temperature": 0}
        data = json.dumps({**asked, "max_tokens": 1, **body}).encode()
        headers = {"Content-Type": "application/json"}
        return urllib.request.Request(f"{self.url}/v1/completions", data, headers)

    def fetch(self, answer: dict[str, Any] | None, *, reason: bool = True) -> str:
        """What the client of hs_connectors makes of an answer; takes the file away.

        ``reason``: a sample without a file must come with one.
        """
        from hs_connectors import FileTransfer

        if answer is None or "hidden_states_error" in answer:
            return TOLD
        path = answer["hidden_states_path"]
        transfer, begun = FileTransfer(self.storage), time.monotonic()
        try:
            sample = transfer.get_generated(answer)
        except FileNotFoundError as error:  # by specshim's patch, with the reason
            given = "No hidden states: " in str(error)
            return TOLD if given or not reason else LOST
        except TimeoutError:
            return LOST
        finally:
            self.waits.append(time.monotonic() - begun)
        if sample is None:
            return LOST if reason else TOLD
        with suppress(FileNotFoundError):
            transfer.delete(path)
        return SURVIVED if self.known.is_right(sample) else WRONG

    def sample(self, *, reason: bool = True, **body: Any) -> str:
        """The outcome of one request for a random prompt."""
        prompt = self.random.choice(self.known.prompts)
        return self.fetch(self.ask(prompt, **body), reason=reason)

    def samples(self, count: int, concurrency: int = 12, **options: Any) -> list[str]:
        """Outcomes of many, several at a time."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda _: self.sample(**options), range(count)))

    def leave_early(self, seconds: float, **body: Any) -> str:
        """Ask, and go away after ``seconds`` unless the answer has come by then."""
        prompt = self.random.choice(self.known.prompts)
        request = self._request(prompt, **body)
        connection = http.client.HTTPConnection(request.host, timeout=120)
        try:
            connection.request("POST", request.selector, request.data, request.headers)
            ready, _, _ = select.select([connection.sock], [], [], seconds)
            if not ready:
                return TOLD  # it knows, for it was the client that left
            answer = json.load(connection.getresponse())
        finally:
            connection.close()
        return self.fetch(answer["kv_transfer_params"])

    # What is there

    def files(self) -> list[str]:
        """Names below the storage path, hidden ones and locks included."""
        found = self.storage.rglob("*")
        return sorted(str(p.relative_to(self.storage)) for p in found if p.is_file())

    def take_orphans(self) -> list[str]:
        """Outcomes of the complete files that nobody fetched; they are removed."""
        paths = [str(p) for p in self.storage.rglob("*.safetensors")]
        return [self.fetch({"hidden_states_path": path}) for path in paths]

    def worker(self) -> int:
        """The id of the process that writes samples: a worker, or the engine core."""
        named: dict[str, int] = {}
        children = [self.process.pid]
        while children:
            pid = children.pop()
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                children += [int(child) for child in task.read_text().split()]
            title = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            if title.startswith("VLLM::"):
                named[title] = pid
        workers = sorted(title for title in named if title.startswith("VLLM::Worker"))
        return named[(workers or sorted(named))[0]]

    def metrics(self) -> dict[str, float]:
        """Sums of vLLM's metrics by name, without the prefix."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        sums: dict[str, float] = {}
        for line in lines:
            if line.startswith("vllm:"):
                name, value = line.removeprefix("vllm:").rsplit(" ", 1)
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def traces(self) -> Traces:
        worker = f"/proc/{self.worker()}"
        links = []
        for entry in os.listdir(f"{worker}/fd"):
            try:
                links.append(os.readlink(f"{worker}/fd/{entry}"))
            except OSError:
                continue
        metrics = self.metrics()
        return Traces(
            storage_descriptors=sum(str(self.storage) in link for link in links),
            descriptors=len(links),
            threads=len(os.listdir(f"{worker}/task")),
            blocks_in_use=metrics["kv_cache_usage_perc"],
            requests=metrics["num_requests_running"] + metrics["num_requests_waiting"],
        )

    def settle(self, is_quiet: Callable[[Traces], bool], seconds: float = 30) -> Traces:
        """The traces as soon as they are quiet, or those after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not is_quiet(found := self.traces()) and time.monotonic() < deadline:
            time.sleep(0.3)
            self.sample()  # vLLM counts blocks and requests at the end of a step
        return found

    def kill(self) -> None:
        """SIGKILL for all of its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def kill_worker(self) -> None:
        """SIGKILL for the process that writes samples."""
        os.kill(self.worker(), signal.SIGKILL)


def command(python: str, model: Path, storage: Path, *more: str) -> list[str]:
    """A stock command line, which the plugin reroutes; clients may name files."""
    configs = stock_request(storage, LAYER_IDS)
    extra = configs["kv_transfer_config"]["kv_connector_extra_config"]
    extra["allow_custom_save_path"] = True
    flags = [part for k, v in configs.items() for part in (f"--{k}", json.dumps(v))]
    return [python, *API_SERVER, "--model", str(model), *flags, *OPTIONS, *more]


@contextmanager
def faulty_server(
    release: str, known: Known, model: Path, storage: Path, folder: Path, *more: str
) -> Iterator[FaultyServer]:
    """A server on ``storage``; its log and its faults' rules are in ``folder``."""
    port, log, control = free_port(), folder / "server.log", folder / "faults.json"
    folder.mkdir(parents=True, exist_ok=True)
    full = command(python_of(f"vllm-{release}"), model, storage, *more)
    paths = [str(INJECT), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if set(ONE_PROCESS) <= set(more):
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # else "mp" all the same
    with running(
        [*full, "--port", str(port)],
        log,
        environment(**variables, FAULTS=str(control)),
    ) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until_healthy(process, url, 3 * START_SECONDS)  # beside another one
        except ServerFailed as error:
            pytest.fail(f"{error}\n{log.read_text(errors='replace')[-8000:]}")
        yield FaultyServer(url, model, storage, known, process, control, log)


@contextmanager
def small_disk(folder: Path, megabytes: int = 128) -> Iterator[Path]:
    """A tmpfs of its own, or an ordinary folder where this user may not mount one."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
