"""Real vLLM servers for the end-to-end tests, and requests to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stock_request import stock_request

from specshim.server_process import ServerFailed, free_port, running, wait_until_healthy

PYTHONS: dict[str, str] = json.loads(os.environ.get("SPECSHIM_TEST_ENVS", "{}"))
START_SECONDS = 300.0


def python_of(name: str) -> str:
    """The interpreter of an environment of compat.toml, such as "vllm-0.32.0"."""
    if name not in PYTHONS:
        pytest.skip(f"SPECSHIM_TEST_ENVS names no {name}")
    return PYTHONS[name]


def _core() -> int:
    cores = sorted(os.sched_getaffinity(0))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return cores[int(worker) % len(cores)]


def environment(**more: str) -> dict[str, str]:
    """For a vLLM process of the tests: the CPU, no hub, nothing of ours set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SPECSHIM")}
    return {
        **kept,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # Tests run side by side: one thread each, and a core per test process.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(_core()),
        **more,
    }


@dataclass(frozen=True)
class Server:
    """A server that answers at ``url``; ``storage`` is its hidden-states path."""

    url: str
    model: Path
    storage: Path
    log: Path

    def post(self, path: str, body: dict[str, Any], **headers: str) -> Any:
        """The JSON answer to a request; HTTPError for any status but 200."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            json.dumps({"model": str(self.model), **body}).encode(),
            {"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def complete(self, prompt: Sequence[int], **body: Any) -> dict[str, Any]:
        """``kv_transfer_params`` of a completion of one token."""
        asked = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0, **body}
        answer = self.post("/v1/completions", asked)
        return {**(answer["kv_transfer_params"] or {}), "answer": answer}

    def complete_all(
        self, prompts: Sequence[Sequence[int]], concurrency: int, **body: Any
    ) -> list[dict[str, Any]]:
        """As :meth:`complete`, ``concurrency`` requests at a time, in order."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, **body), prompts))

    def complete_with_output(
        self, prompts: Sequence[Sequence[int]]
    ) -> tuple[list[dict[str, Any]], list[list[int]]]:
        """Answers of six tokens that are in the samples, and the ids of those."""
        answers = self.complete_all(
            prompts,
            8,
            max_tokens=6,
            ignore_eos=True,
            return_token_ids=True,
            kv_transfer_params={"include_output_tokens": True},
        )
        whole = [
            [*prompt, *answer["answer"]["choices"][0]["token_ids"][:-1]]
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        return answers, whole

    def leftovers(self) -> list[str]:
        """What lies in the storage path, locks and hidden files included."""
        return sorted(os.listdir(self.storage)) if self.storage.exists() else []


@contextmanager
def serve(
    command: Sequence[str], model: Path, folder: Path, **variables: str
) -> Iterator[Server]:
    """Run ``command`` plus ``--port``; ``folder``/hs is its hidden-states path."""
    if "--enforce-eager" not in command and shutil.which("g++") is None:
        pytest.skip("vLLM compiles with g++ on the CPU, which is not installed")
    port, log = free_port(), folder / "server.log"
    url = f"http://127.0.0.1:{port}"
    full = [*command, "--port", str(port)]
    with running(full, log, environment(**variables)) as process:
        try:
            wait_until_healthy(process, url, START_SECONDS)
        except ServerFailed as error:
            pytest.fail(f"{error}\n{log.read_text(errors='replace')[-8000:]}")
        yield Server(url, model, folder / "hs", log)


def stock_arguments(model: Path, storage: Path, layer_ids: Sequence[int]) -> list[str]:
    """The same on the command line, in upstream's spelling."""
    configs = stock_request(storage, layer_ids)
    flags = [part for k, v in configs.items() for part in (f"--{k}", json.dumps(v))]
    return ["--model", str(model), *flags]


def run_offline(
    python: str, engine_args: dict[str, Any], calls: list[dict[str, Any]], **env: str
) -> list[list[dict[str, Any]]]:
    """Run ``vllm.LLM`` in a process of its own; see offline.py for ``calls``."""
    script = Path(__file__).with_name("offline.py")
    done = subprocess.run(
        [python, str(script)],
        check=False,
        input=json.dumps({"engine_args": engine_args, "calls": calls}),
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(**env),
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and lines, done.stdout[-3000:] + done.stderr[-8000:]
    result: list[list[dict[str, Any]]] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


def load(path: str) -> dict[str, Any]:
    """By the real client of hs_connectors; takes the files away."""
    transfer = pytest.importorskip("hs_connectors").FileTransfer(Path(path).parent)
    loaded = transfer.get_generated({"hidden_states_path": path})
    transfer.delete(path)
    return loaded
