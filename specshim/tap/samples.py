"""The scheduler's half: which request gets which file, and which rows it was given."""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_NAME_LIMIT = 200  # file names end at 255 bytes; suffixes need room
_REMEMBERED = 4096  # first choices whose siblings may still come


@dataclass(frozen=True)
class Opened:
    """Sent to the worker when a request is first scheduled.

    ``rows`` is the number of rows the sample will have, or None where output tokens
    are wanted too and the number is known at the end only.
    """

    path: str
    rows: int | None
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Closed:
    """Sent when the client is told of a sample: its size and its token ids."""

    rows: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Scheduled:
    """One request's rows in this step: tokens ``start`` .. ``start + count`` of it."""

    start: int
    count: int


@dataclass
class StepSamples:
    """What the worker must know of one step."""

    opened: dict[str, Opened] = field(default_factory=dict)
    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


def file_name(request_id: str) -> str:
    """A file name for a request id, which may come from a client's header.

    Anything but letters, digits, ``-``, ``_`` and inner dots is replaced, and a hash of
    the id is added where something was replaced or cut, so that ids stay distinct.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]", "_", request_id).lstrip(".")[:_NAME_LIMIT]
    if clean != request_id or not clean:
        digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()
        clean = f"{clean}-{digest[:16]}".lstrip("-")
    return f"{clean}.safetensors"


def custom_path(storage: str, asked: object) -> str:
    """The real path of a client's ``hidden_states_path``; it must lie in ``storage``.

    Raises:
        ValueError: it does not; the message is for the client.
    """
    root = os.path.realpath(storage)
    if not isinstance(asked, str) or "\0" in asked or not asked:
        raise ValueError("hidden_states_path must be a file path")
    path = os.path.realpath(os.path.join(root, asked))
    if os.path.commonpath([root, path]) != root or path == root:
        raise ValueError(f"hidden_states_path must lie below the storage path {root}")
    return path


# One HTTP completion request with several prompts becomes cmpl-X-0, cmpl-X-1, ... (and,
# in later releases, a random suffix); n > 1 becomes 0_X, 1_X, ... Only one path reaches
# the client, the first prompt's (protocol of vLLM's completion endpoint since V1).
_SIBLINGS = (
    re.compile(r"(?P<head>)(?P<index>\d+)_(?P<tail>.+)"),
    re.compile(r"(?P<head>cmpl-.+-)(?P<index>\d+)(?P<tail>)"),
    re.compile(r"(?P<head>cmpl-.+-)(?P<index>\d+)(?P<tail>)-[0-9a-f]{8}"),
)


class Siblings:
    """Recognises the requests that one client call was split into."""

    def __init__(self) -> None:
        self._firsts: OrderedDict[tuple[int, str, str], str] = OrderedDict()

    def first_of(self, request_id: str) -> str | None:
        """The id of the call's first request, or None where this is it."""
        for form, pattern in enumerate(_SIBLINGS):
            match = pattern.fullmatch(request_id)
            if match is None:
                continue
            key = (form, match["head"], match["tail"])
            if int(match["index"]) == 0:
                self._firsts[key] = request_id
                if len(self._firsts) > _REMEMBERED:
                    self._firsts.popitem(last=False)
            elif key in self._firsts:
                return self._firsts[key]
        return None


@dataclass
class _Sample:
    path: str
    prompt_rows: int
    with_output: bool
    has_ids: bool
    covered: int = 0
    failure: str | None = None


class Samples:
    """Bookkeeping of the scheduler process; pure Python, one instance per engine."""

    def __init__(self, storage: str, allow_custom_path: bool, sync: bool) -> None:
        self._storage = storage
        self._allow_custom_path = allow_custom_path
        self._sync = sync
        self._samples: dict[str, _Sample] = {}
        self._siblings = Siblings()
        self._told: OrderedDict[str, str] = OrderedDict()  # first id -> its path
        self._shared: dict[str, str] = {}  # sibling id -> first id
        self._step = StepSamples()

    def open(
        self,
        request_id: str,
        token_ids: Sequence[int] | None,
        prompt_rows: int,
        parameters: dict[str, Any],
        *,
        streamed: bool = False,
    ) -> None:
        """A request is scheduled for the first time, or again after preemption.

        Args:
            request_id: the engine's id.
            token_ids: of the prompt; None for prompt embeddings.
            prompt_rows: length of the prompt.
            parameters: the request's ``kv_transfer_params``.
            streamed: the response is streamed, and so cannot tell the path.
        """
        if request_id in self._samples or request_id in self._shared:
            return
        first = self._siblings.first_of(request_id)
        if first is not None:
            self._shared[request_id] = first
            return
        with_output = bool(parameters.get("include_output_tokens", False))
        path = os.path.join(self._storage, file_name(request_id))
        sample = _Sample(path, prompt_rows, with_output, token_ids is not None)
        self._samples[request_id] = sample
        asked = parameters.get("hidden_states_path")
        if with_output and self._sync:
            sample.failure = (
                "include_output_tokens needs the lock protocol; the server runs with "
                "sync, which completes files before the last token is known"
            )
        elif streamed and asked is None:
            sample.failure = "streamed responses cannot tell where the file is"
        elif asked is not None and not self._allow_custom_path:
            sample.failure = (
                "the request names a hidden_states_path, which the server does not "
                "allow; leave it out, or set allow_custom_save_path in "
                "kv_connector_extra_config"
            )
        elif asked is not None:
            try:
                sample.path = custom_path(self._storage, asked)
            except ValueError as error:
                sample.failure = str(error)
        others = [s for i, s in self._samples.items() if i != request_id]
        if sample.failure is None and any(s.path == sample.path for s in others):
            sample.failure = f"another request in flight writes to {sample.path}"
        if sample.failure is None:
            self._step.opened[request_id] = Opened(
                path=sample.path,
                rows=None if with_output else prompt_rows,
                token_ids=tuple(token_ids or ()),
            )

    def schedule(self, request_id: str, start: int, count: int) -> None:
        """The step computes ``count`` rows of a request from token ``start`` on."""
        self._step.scheduled[request_id] = Scheduled(start, count)
        sample = self._samples.get(request_id)
        if sample is None or sample.failure is not None:
            return
        if start > sample.covered:
            self._fail(
                request_id,
                f"tokens {sample.covered} to {start - 1} were not computed but taken "
                "from the prefix cache, so they have no hidden states; start the "
                "server with --no-enable-prefix-caching",
            )
        sample.covered = max(sample.covered, start + count)

    def _fail(self, request_id: str, reason: str) -> None:
        self._samples[request_id].failure = reason
        self._drop(request_id, reason)

    def _drop(self, request_id: str, reason: str) -> None:
        if self._step.opened.pop(request_id, None) is None:  # the worker knows of it
            self._step.dropped[request_id] = reason

    def finish(
        self, request_id: str, all_token_ids: Sequence[int], aborted: bool
    ) -> dict[str, Any] | None:
        """A request has ended; returns the response's ``kv_transfer_params``.

        ``hidden_states_path`` where there is or will be a file, else
        ``hidden_states_error`` with the reason; None for an aborted request.
        """
        first = self._shared.pop(request_id, None)
        if first is not None:
            path = self._told.get(first) or getattr(
                self._samples.get(first), "path", None
            )
            return None if path is None else {"hidden_states_path": path}
        sample = self._samples.pop(request_id, None)
        if sample is None:  # aborted before it was ever scheduled
            return None
        rows = len(all_token_ids) - 1 if sample.with_output else sample.prompt_rows
        if sample.failure is None and not aborted and sample.covered < rows:
            sample.failure = f"only {sample.covered} of {rows} rows were computed"
            self._drop(request_id, sample.failure)
        if aborted:
            if sample.failure is None:
                self._drop(request_id, "the request was aborted")
            return None
        if sample.failure is not None:
            return {"hidden_states_error": sample.failure}
        token_ids = tuple(all_token_ids[:rows]) if sample.has_ids else ()
        self._step.closed[request_id] = Closed(rows, token_ids)
        self._told[request_id] = sample.path
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        return {"hidden_states_path": sample.path}

    def take_step(self) -> StepSamples:
        """Everything noted since the last call, for the worker."""
        step, self._step = self._step, StepSamples()
        return step

    def take_ended(self) -> StepSamples:
        """Only what is noted of ended samples, where the worker can be told at once."""
        ended = StepSamples(closed=self._step.closed, dropped=self._step.dropped)
        self._step.closed, self._step.dropped = {}, {}
        return ended
