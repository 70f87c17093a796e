"""The trainer's side of a soak: asks, waits for the lock, checks, takes files away."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
import urllib.parse
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specshim import _locks

SHORTEST = 4  # tokens of a prompt
LONGEST_OUTPUT = 12
ANSWER_SECONDS = 300.0
IDLE_SECONDS = 3.0  # vLLM closes a connection that is idle for 5


@dataclass(frozen=True)
class Job:
    """What one client process does.

    ``references`` is a file with what :mod:`soak_reference` made: prompts, their
    states and the allowed errors. Each request asks for the beginning of one of the
    prompts; states of a causal model do not depend on what follows.
    """

    url: str
    model: str
    storage: str
    references: str
    seconds: float
    concurrency: int
    seed: int
    aborts: float = 0.1
    with_output: float = 0.1
    verify_every: int = 50


@dataclass
class Outcome:
    """Counts of one client process, and the first sentences of what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    worst_error: float = 0.0  # relative, of a layer of a verified sample
    worst_share: float = 0.0  # the same as a share of what is allowed
    problems: list[str] = field(default_factory=list)


class Client:
    """Runs a job with one thread per request in flight."""

    def __init__(self, job: Job, done: Any) -> None:
        import torch

        self._job = job
        self._done = done  # shared counter of complete samples
        self._data = torch.load(job.references, weights_only=True, mmap=True)
        self._netloc = urllib.parse.urlsplit(job.url).netloc
        self._outcome = Outcome()
        self._lock = threading.Lock()
        self._end = 0.0

    def run(self) -> Outcome:
        """Until the time is up and the last answer is there."""
        self._end = time.monotonic() + self._job.seconds
        threads = [
            threading.Thread(target=self._loop, args=(self._job.seed * 1000 + i,))
            for i in range(self._job.concurrency)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._outcome

    def _loop(self, seed: int) -> None:
        source = random.Random(seed)
        connection, used = self._connect(), time.monotonic()
        while time.monotonic() < self._end:
            if time.monotonic() - used > IDLE_SECONDS:  # on a starved machine
                connection.close()
            index = source.randrange(len(self._data["prompts"]))
            prompt = self._data["prompts"][index]
            prompt = prompt[: source.randint(min(SHORTEST, len(prompt)), len(prompt))]
            body = self._body(source, prompt)
            try:
                if source.random() < self._job.aborts:
                    self._abort(source, connection, body)
                    connection = self._connect()
                else:
                    self._request(connection, body, index, prompt)
            except Exception as error:  # every kind of failure is one to be counted
                self._problem("errors", f"{type(error).__name__}: {error}")
                connection.close()
                connection = self._connect()
                time.sleep(0.2)
            used = time.monotonic()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._netloc, timeout=ANSWER_SECONDS)

    def _body(self, source: random.Random, prompt: list[int]) -> dict[str, Any]:
        body = {
            "model": self._job.model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
        }
        if source.random() < self._job.with_output:
            body |= {
                "max_tokens": source.randint(2, LONGEST_OUTPUT),
                "ignore_eos": True,
                "kv_transfer_params": {"include_output_tokens": True},
            }
        return body

    def _send(self, connection: http.client.HTTPConnection, body: Any) -> None:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)

    def _abort(
        self, source: random.Random, connection: http.client.HTTPConnection, body: Any
    ) -> None:
        """Go away after a random while; an answer that came by then is taken."""
        self._send(connection, body)
        assert connection.sock is not None
        connection.sock.settimeout(source.random() ** 2 * 2.0 + 1e-4)
        try:
            answer = json.load(connection.getresponse())
        except TimeoutError:
            self._count("aborted")
            return
        finally:
            connection.close()
        self._count("answered_before_abort")
        told = answer.get("kv_transfer_params") or {}
        if "hidden_states_error" not in told and told:
            self._take_away(told["hidden_states_path"])

    def _request(
        self,
        connection: http.client.HTTPConnection,
        body: dict[str, Any],
        index: int,
        prompt: list[int],
    ) -> None:
        self._send(connection, body)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {text[:200]!r}")
        told = json.loads(text).get("kv_transfer_params") or {}
        if "hidden_states_error" in told or not told:
            self._problem("refused", str(told.get("hidden_states_error")))
            return
        path = told["hidden_states_path"]
        try:
            self._wait(path)
            rows = len(prompt) + (body["max_tokens"] - 1)
            self._check(path, index, prompt, rows)
        except FileNotFoundError as error:
            self._problem("lost", str(error))
        except ValueError as error:
            self._problem("wrong", str(error))
        finally:
            self._take_away(path)

    def _wait(self, path: str) -> None:
        with suppress(FileNotFoundError):  # a file without a lock is complete
            _locks.wait(f"{path}.lock", interval=0.01)

    def _check(self, path: str, index: int, prompt: list[int], rows: int) -> None:
        from safetensors import safe_open

        number = self._count("samples")
        with self._done.get_lock():
            self._done.value += 1
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            token_ids = file.get_tensor("token_ids").tolist()
            whole = number % self._job.verify_every == 0
            states = file.get_tensor("hidden_states")
        if token_ids[: len(prompt)] != prompt or len(token_ids) != rows:
            raise ValueError(f"{path} holds other token ids")
        layer_ids = json.loads(metadata["layer_ids"])
        if list(states.shape[:2]) != [rows, len(layer_ids)]:
            raise ValueError(f"{path} has shape {list(states.shape)}")
        self._count("bytes", states.nbytes)
        self._count("tokens", rows)
        # Every sample's first and last row of the prompt, of each 50th all of them.
        places = range(len(prompt)) if whole else (0, len(prompt) - 1)
        kept = [self._data["layer_ids"].index(layer_id) for layer_id in layer_ids]
        expected = self._data["states"][index][list(places)][:, kept].float()
        actual = states[list(places)].float()
        error = (actual - expected).norm(dim=(0, 2)) / expected.norm(dim=(0, 2))
        limit = self._data["limits" if whole else "row_limits"][kept]
        share = error / limit
        if not bool((share <= 1).all()):
            raise ValueError(f"{path} is wrong by {error.tolist()}")
        if whole:
            self._count("verified")
            with self._lock:
                outcome = self._outcome
                outcome.worst_error = max(outcome.worst_error, float(error.max()))
                outcome.worst_share = max(outcome.worst_share, float(share.max()))

    def _take_away(self, path: str) -> None:
        self._wait(path)
        for name in (path, f"{path}.lock"):
            with suppress(FileNotFoundError):
                os.unlink(name)

    def _count(self, name: str, more: int = 1) -> int:
        with self._lock:
            self._outcome.counts[name] += more
            return self._outcome.counts[name]

    def _problem(self, kind: str, text: str) -> None:
        self._count(kind)
        with self._lock:
            if len(self._outcome.problems) < 20:
                self._outcome.problems.append(f"{kind}: {text}"[:500])


def run_job(job: Job, done: Any, outcomes: Any) -> None:
    """The main function of a client process."""
    import torch

    torch.set_num_threads(1)
    outcomes.put(Client(job, done).run())


def remove_abandoned(storage: Path, age: float) -> int:
    """Remove the complete files that nobody has taken for ``age`` seconds; how many.

    Their client went away after the server had answered and before it had read that.
    Lock files that the server holds are of samples which are not complete yet.
    """
    removed = 0
    for path in storage.glob("*.safetensors"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > age:
                path.unlink()
                Path(f"{path}.lock").unlink(missing_ok=True)
                removed += 1
    return removed
