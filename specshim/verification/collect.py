"""Ask a running server for hidden states and load the files that it names."""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_POLL_S = 0.02
# Answers never go through a proxy: the files lie on this machine or a shared disk.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class CouldNotTell(Exception):
    """Nothing can be said about the server; the message is one clear sentence."""


@dataclass(frozen=True)
class Server:
    """A server that answers: its address without /v1, and the model it serves."""

    url: str
    model: str
    max_model_len: int | None


@dataclass(frozen=True)
class Sample:
    """What came back for one prompt."""

    index: int  # of the prompt
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]  # as the file says
    states: Tensor  # [rows, layers, hidden], the server's dtype
    dtype: str  # "float32", "bfloat16", "float16"
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """A prompt without a sample, and the sentence that says why."""

    index: int
    reason: str


def find_server(url: str, *, timeout: float = 10.0) -> Server:
    """The server at ``url`` and the first model it lists.

    Raises:
        CouldNotTell: it does not answer, or lists no model.
    """
    base = url.rstrip("/").removesuffix("/v1")
    if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
        raise CouldNotTell(f"{url!r} is no http address; give one as http://host:port.")
    answer = _call(f"{base}/v1/models", None, timeout)
    try:
        entry = answer["data"][0]
        return Server(base, str(entry["id"]), entry.get("max_model_len"))
    except (KeyError, IndexError, TypeError) as error:
        raise CouldNotTell(f"The server at {base} lists no model.") from error


def random_prompts(
    token_ids: Sequence[int], count: int, max_length: int, seed: int
) -> list[list[int]]:
    """``count`` prompts of random ids, of different lengths up to ``max_length``."""
    source = random.Random(seed)
    lengths = [max_length]
    while len(lengths) < count:
        shorter = range(1, max_length)
        lengths += source.sample(shorter, min(count - len(lengths), len(shorter)))
        if not shorter:
            lengths += [max_length] * (count - len(lengths))
    source.shuffle(lengths)
    return [source.choices(token_ids, k=length) for length in lengths]


def collect(
    server: Server,
    prompts: Sequence[Sequence[int]],
    *,
    concurrency: int = 8,
    timeout: float = 120.0,
    file_timeout: float = 30.0,
    keep: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[Sample | Missing]:
    """Send all prompts, ``concurrency`` at a time; one entry per prompt, in order.

    Args:
        timeout: seconds one request may take.
        file_timeout: seconds to wait for a file after its request was answered.
        keep: leave the files where the server wrote them.
        progress: called after each prompt with the number done.
    """

    def one(index: int) -> Sample | Missing:
        try:
            return _fetch(
                server, index, prompts[index], timeout, file_timeout, keep=keep
            )
        except CouldNotTell as error:
            return Missing(index, str(error))

    results: dict[int, Sample | Missing] = {}
    with ThreadPoolExecutor(max_workers=max(1, concurrency)) as pool:
        try:
            futures = {pool.submit(one, i): i for i in range(len(prompts))}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                if progress is not None:
                    progress(len(results))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[index] for index in range(len(prompts))]


def _fetch(
    server: Server,
    index: int,
    prompt: Sequence[int],
    timeout: float,
    file_timeout: float,
    *,
    keep: bool,
) -> Sample:
    body = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0.0,
        "return_token_ids": True,
    }
    answer = _call(f"{server.url}/v1/completions", body, timeout)
    choices = answer.get("choices") or [{}]
    echoed = choices[0].get("prompt_token_ids") or answer.get("prompt_token_ids")
    if echoed is not None and list(echoed) != list(prompt):
        raise CouldNotTell(
            f"The server ran {len(echoed)} tokens that are not the {len(prompt)} of "
            "the prompt, so its states cannot be compared."
        )
    parameters = answer.get("kv_transfer_params") or {}
    handle = parameters.get("hidden_states_path")
    if reason := parameters.get("hidden_states_error"):
        raise CouldNotTell(f"The server gave no states: {reason}.")
    if handle is None and "handle" in parameters:
        raise CouldNotTell(
            "The server's samples go to Mooncake, not to files, so they cannot be read "
            "here; verify with the backend file, whose rows are the same."
        )
    if not handle:
        raise CouldNotTell(
            "The answer names no hidden-states file (kv_transfer_params."
            "hidden_states_path); was the server started to extract hidden states?"
        )
    path = Path(str(handle))
    sample = _load(path, index, tuple(prompt), file_timeout)
    if not keep:
        path.unlink(missing_ok=True)
    return sample


def _call(url: str, body: Mapping[str, Any] | None, timeout: float) -> Any:
    """The parsed JSON answer; every failure becomes CouldNotTell."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with _OPENER.open(request, timeout=timeout) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        text = " ".join(error.read(2000).decode(errors="replace").split())[:300]
        raise CouldNotTell(f"{url} answered {error.code}: {text}") from error
    except TimeoutError as error:
        raise CouldNotTell(f"{url} gave no answer within {timeout:g} s.") from error
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            reason = f"no answer within {timeout:g} s"
        raise CouldNotTell(f"{url} cannot be reached: {reason}.") from error
    except ValueError as error:
        raise CouldNotTell(f"{url} answered something that is not JSON.") from error


def wait_for_file(path: Path, deadline: float) -> None:
    """Return once ``path`` is complete, by the lock file beside it.

    The writer creates ``<path>.lock``, holds an flock on it until the data is on
    disk, and leaves its removal to the reader. A writer without locks is taken at
    its word: the file is complete when it is there.

    Args:
        deadline: by time.monotonic().

    Raises:
        TimeoutError: neither came in time.
    """
    lock = path.with_name(path.name + ".lock")
    while True:
        try:
            # Writable where possible: NFS gives exclusive locks to no other.
            descriptor = os.open(lock, os.O_RDWR)
            mode = fcntl.LOCK_EX
        except FileNotFoundError:
            if path.exists():
                return
            descriptor = None
        except PermissionError:
            descriptor = os.open(lock, os.O_RDONLY)
            mode = fcntl.LOCK_SH
        if descriptor is not None:
            try:
                fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                lock.unlink(missing_ok=True)
                return
            finally:
                os.close(descriptor)
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(_POLL_S)


def _load(
    path: Path, index: int, prompt: tuple[int, ...], file_timeout: float
) -> Sample:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise CouldNotTell(
            "Reading hidden states needs safetensors and torch, which are not both "
            "installed in this environment; run this where vLLM is installed."
        ) from error
    deadline = time.monotonic() + file_timeout
    while True:
        try:
            wait_for_file(path, deadline)
        except TimeoutError as error:
            raise CouldNotTell(_absent(path, file_timeout)) from error
        if not path.exists():
            raise CouldNotTell(
                f"The server finished {path} without leaving a file; its log says why."
            )
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = dict(file.metadata() or {})
            break
        except SafetensorError as error:
            # A writer without locks may still be writing.
            if time.monotonic() >= deadline:
                raise CouldNotTell(
                    f"{path} is no whole safetensors file: {error}."
                ) from (error)
            time.sleep(_POLL_S)
    states, token_ids = tensors.get("hidden_states"), tensors.get("token_ids")
    if states is None or token_ids is None or states.dim() != 3:
        raise CouldNotTell(
            f"{path} holds {sorted(tensors)} instead of hidden_states [tokens, layers, "
            "hidden] and token_ids [tokens]."
        )
    dtype = str(states.dtype).removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise CouldNotTell(
            f"{path} holds states in {dtype}, which cannot be compared; serve with the "
            "backend that keeps the model's own dtype."
        )
    ids = tuple(token_ids.tolist())
    return Sample(index, prompt, ids, states, dtype, metadata)


def _absent(path: Path, seconds: float) -> str:
    if not path.parent.is_dir():
        return (
            f"{path.parent} is not there; run this on the server's machine, or where "
            "its hidden-states folder is mounted at the same place."
        )
    return f"{path} was not complete {seconds:g} s after its request was answered."
