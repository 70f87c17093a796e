"""The scheduler's half: which request gets which sample, and which rows it had."""

from __future__ import annotations

import itertools
import logging
import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specshim._sample_files import temporary_name
from specshim.tap.places import Places, shown

logger = logging.getLogger("vllm.specshim")

_K = TypeVar("_K")
_V = TypeVar("_V")
_REMEMBERED = 4096  # first choices whose siblings may still come
_SERIALS = itertools.count()  # of all engines of a process


@dataclass(frozen=True)
class Opened:
    """Sent to the worker when a request is first scheduled.

    ``rows`` is the number of rows the sample will have, or None where output tokens
    are wanted too and the number is known at the end only.
    """

    path: str  # the handle for the sink
    rows: int | None
    token_ids: tuple[int, ...]
    serial: int = -1  # names the sample where its failure is told to the scheduler
    temporary: str = ""  # the file's name while pipeline stages share it


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
    """What the worker must know of one step.

    ``counts`` are the rows of all its requests, ``scheduled`` those that samples need.
    """

    opened: dict[str, Opened] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    withdrawn: list[int] = field(default_factory=list)  # serials of closed ones


# One HTTP completion request with several prompts becomes cmpl-X-0, cmpl-X-1, ... (with
# a random suffix in later releases); n > 1 becomes 0_X, 1_X, ... The client is told one
# path, the first prompt's (vLLM's completion endpoint and ParentRequest, all releases).
# X comes from the client where it sends a header X-Request-Id, and may be anything.
_CHOICE = re.compile(r"(?P<index>[0-9]+)_(?P<rest>.+)", re.DOTALL)
_PROMPT = (
    re.compile(r"(?P<head>cmpl-.*)-(?P<index>[0-9]+)-[0-9a-f]{8}", re.DOTALL),
    re.compile(r"(?P<head>cmpl-.*)-(?P<index>[0-9]+)", re.DOTALL),
)
_OF_THE_SERVER = ("cmpl-", "chatcmpl-")


class Siblings:
    """Recognises the requests that one client call was split into."""

    def __init__(self) -> None:
        self._firsts: OrderedDict[str, str] = OrderedDict()

    @staticmethod
    def is_choice(request_id: str) -> bool:
        """Whether this is one of n > 1 of a call over HTTP."""
        choice = _CHOICE.fullmatch(request_id)
        return choice is not None and choice["rest"].startswith(_OF_THE_SERVER)

    def first_of(self, request_id: str) -> str | None:
        """The id of the call's first request; None where this is it.

        "" where it is not the first and the first went to another engine (data
        parallel) or is long forgotten.
        """
        choice = _CHOICE.fullmatch(request_id)
        rest = choice["rest"] if choice else request_id
        prompt = next((m for p in _PROMPT if (m := p.fullmatch(rest))), None)
        if choice is None and prompt is None:
            return None
        later_prompt = prompt is not None and prompt["index"].strip("0") != ""
        later_choice = choice is not None and choice["index"].strip("0") != ""
        # Choices share all but their number. Prompts of one call have only the head in
        # common, which another client may have chosen too: of those nothing is told.
        call = prompt["head"] if prompt and later_prompt else rest
        if not later_prompt and not later_choice:
            for key in {rest, prompt["head"] if prompt else rest}:
                remember(self._firsts, key, request_id, _REMEMBERED)
            return None
        if call in self._firsts:
            return self._firsts[call]
        # An id that a caller of AsyncLLM chose may look like one of n > 1.
        return "" if rest.startswith(_OF_THE_SERVER) else None


@dataclass
class _Sample:
    path: str
    prompt_rows: int
    with_output: bool
    has_ids: bool
    covered: int = 0
    failure: str | None = None
    told: dict[str, Any] | None = None  # once its request has ended
    serial: int = field(default_factory=lambda: next(_SERIALS))


class Samples:
    """Bookkeeping of the scheduler process; pure Python, one instance per engine.

    Args:
        places: chooses the samples' handles.
        sync: samples are complete before their responses leave.
        data_parallel: this engine is one of several behind one API server.
        stages: the workers are stages of a pipeline, each of which has some layers.
    """

    def __init__(
        self,
        places: Places,
        sync: bool,
        *,
        data_parallel: bool = False,
        stages: bool = False,
    ) -> None:
        self._places = places
        self._stages = stages
        self._sync = sync
        self._data_parallel = data_parallel
        self._samples: dict[str, _Sample] = {}
        self._sessions: set[str] = set()
        self._failed: deque[Mapping[int, str]] = deque()  # by the worker, news
        self._siblings = Siblings()
        self._ended: OrderedDict[str, _Sample] = OrderedDict()
        self._shared: dict[str, str] = {}  # sibling id -> first id
        self._step = StepSamples()

    def open(
        self,
        request_id: str,
        token_ids: Sequence[int] | None,
        prompt_rows: int,
        parameters: object,
        *,
        streamed: bool = False,
    ) -> None:
        """A request is scheduled for the first time, or again after preemption.

        Args:
            request_id: the engine's id.
            token_ids: of the prompt; None for prompt embeddings.
            prompt_rows: length of the prompt.
            parameters: the request's ``kv_transfer_params``, whatever they are.
            streamed: the output is sent piece by piece; the HTTP endpoints cannot tell
                the path then, whereas callers of AsyncLLM are told.
        """
        if request_id in self._samples or request_id in self._shared:
            return
        of_several = self._data_parallel and Siblings.is_choice(request_id)
        first = None if of_several else self._siblings.first_of(request_id)
        if first is not None:
            self._shared[request_id] = first
            return
        sample = _Sample("", prompt_rows, False, token_ids is not None)
        try:
            known = _mapping(parameters)
            sample.with_output = _with_output(known)
            self._refuse_untellable(
                request_id,
                known,
                with_output=sample.with_output,
                streamed=streamed,
                of_several=of_several,
            )
            sample.path = self._places.choose(request_id, known)
        except ValueError as error:
            sample.failure = str(error)
        others = self._samples.values()
        if sample.failure is None and any(s.path == sample.path for s in others):
            sample.failure = f"another request in flight writes to {sample.path}"
        self._samples[request_id] = sample
        if sample.failure is not None:
            log_failure(request_id, sample.failure)
        else:
            self._step.opened[request_id] = Opened(
                path=sample.path,
                rows=None if sample.with_output else prompt_rows,
                token_ids=tuple(token_ids or ()),
                serial=sample.serial,
                temporary=temporary_name() if self._stages else "",
            )

    def _refuse_untellable(
        self,
        request_id: str,
        asked: Mapping[str, Any],
        *,
        with_output: bool,
        streamed: bool,
        of_several: bool,
    ) -> None:
        """Raise a ValueError where no response could name the sample."""
        if request_id in self._sessions:
            raise ValueError(
                "the request is a session whose prompt comes piece by piece (streaming "
                "input), of which there is no one sample; send each prompt whole"
            )
        if of_several:
            raise ValueError(
                "with data parallelism the choices of one call (n > 1) are computed "
                "by several engines, of which the response can name no one's sample; "
                "ask for n = 1"
            )
        if self._sync and with_output:
            raise ValueError(
                "include_output_tokens needs the lock protocol; the server runs with "
                "sync, which completes samples before the last token is known"
            )
        named = asked.get("hidden_states_path") is not None
        if streamed and not named and request_id.startswith(_OF_THE_SERVER):
            raise ValueError("streamed responses cannot tell where the sample is")

    def is_session(self, request_id: str) -> None:
        """The request, not scheduled yet, is one whose prompt is sent in pieces."""
        self._sessions.add(request_id)

    def failed(self, failures: Mapping[int, str]) -> None:
        """The worker's news: serials of samples and why there will be none.

        May be called from any thread. What comes before a request ends is told in its
        response.
        """
        self._failed.append(failures)

    def _take_news(self) -> None:
        while self._failed:
            failures = self._failed.popleft()
            for request_id, sample in self._samples.items():
                reason = failures.get(sample.serial)
                if reason is not None and sample.failure is None:
                    sample.failure = reason  # which the worker has logged
                    self._drop(request_id, reason)

    def told_with(self, request_id: str) -> str:
        """The request whose sample the response of this one tells."""
        return self._shared.get(request_id, request_id)

    def wants_rows(self, request_id: str) -> bool:
        """Whether rows of a request that come now belong to a sample.

        Those of output tokens mostly do not, and a step may have hundreds of them.
        """
        sample = self._samples.get(request_id)
        if sample is None or sample.failure is not None:
            return False
        return sample.with_output or sample.covered < sample.prompt_rows

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
                "from the prefix cache or from another connector, so they have no "
                "hidden states; start the server with --no-enable-prefix-caching, and "
                "with no connector that loads",
            )
        sample.covered = max(sample.covered, start + count)

    def _fail(self, request_id: str, reason: str) -> None:
        self._samples[request_id].failure = reason
        log_failure(request_id, reason)
        self._drop(request_id, reason)

    def _drop(self, request_id: str, reason: str) -> None:
        if self._step.opened.pop(request_id, None) is None:  # the worker knows of it
            self._step.dropped[request_id] = reason

    def finish(
        self, request_id: str, all_token_ids: Sequence[int], aborted: bool
    ) -> dict[str, Any] | None:
        """A request has ended; returns the response's ``kv_transfer_params``.

        What the backend tells of a sample that is or will be there: the path of a
        file, or the key or manifest of an object in Mooncake (``Places.tell``). Else
        ``hidden_states_error`` with the reason; None for an aborted request.
        """
        self._take_news()
        self._sessions.discard(request_id)
        first = self._shared.pop(request_id, None)
        if first is not None:
            running = self._samples.get(first)
            if running:
                return self._tell(running)
            ended = self._ended.get(first)
            return ended.told if ended else None
        sample = self._samples.pop(request_id, None)
        if sample is None:  # aborted before it was ever scheduled
            return None
        sample.told = self._end(request_id, sample, all_token_ids, aborted)
        remember(self._ended, request_id, sample, _REMEMBERED)
        return sample.told

    def withdraw(self, request_ids: Iterable[str]) -> None:
        """Requests that have ended were aborted: what was told has reached nobody."""
        for request_id in request_ids:
            first = f"0_{request_id}"  # where the client asked for n > 1
            sample = self._ended.pop(request_id, None) or self._ended.pop(first, None)
            if sample is not None and sample.failure is None:
                self._step.withdrawn.append(sample.serial)

    def _end(
        self,
        request_id: str,
        sample: _Sample,
        all_token_ids: Sequence[int],
        aborted: bool,
    ) -> dict[str, Any] | None:
        rows = len(all_token_ids) - 1 if sample.with_output else sample.prompt_rows
        if sample.failure is None and not aborted and sample.covered < rows:
            sample.failure = f"only {sample.covered} of {rows} rows were computed"
            log_failure(request_id, sample.failure)
            self._drop(request_id, sample.failure)
        if aborted:
            if sample.failure is None:
                self._drop(request_id, "the request was aborted")
            return None
        if sample.failure is None:
            token_ids = tuple(all_token_ids[:rows]) if sample.has_ids else ()
            self._step.closed[request_id] = Closed(rows, token_ids)
        return self._tell(sample, rows)

    def _tell(self, sample: _Sample, rows: int | None = None) -> dict[str, Any] | None:
        if sample.failure is not None:
            return self._places.refuse(sample.failure)
        if rows is None and not sample.with_output:
            rows = sample.prompt_rows
        ids = rows or 0 if sample.has_ids else 0
        return self._places.tell(sample.path, rows, ids, with_output=sample.with_output)

    def take_step(self, counts: Mapping[str, int] | None = None) -> StepSamples:
        """Everything noted since the last call, for the worker.

        ``counts`` are the rows of each request of the step; None: of those noted.
        """
        self._take_news()
        step, self._step = self._step, StepSamples()
        if counts is None:
            counts = {i: rows.count for i, rows in step.scheduled.items()}
        step.counts = counts
        return step

    def take_ended(self) -> StepSamples:
        """Only what is noted of ended samples, where the worker can be told at once."""
        noted = self._step
        ended = StepSamples(
            closed=noted.closed, dropped=noted.dropped, withdrawn=noted.withdrawn
        )
        noted.closed, noted.dropped, noted.withdrawn = {}, {}, []
        return ended


def _mapping(parameters: object) -> Mapping[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise ValueError(
            f"kv_transfer_params must be an object, not {type(parameters).__name__}"
        )
    return parameters


def _with_output(parameters: Mapping[str, Any]) -> bool:
    asked = parameters.get("include_output_tokens")
    if asked is None or isinstance(asked, bool):
        return bool(asked)
    raise ValueError(
        f"include_output_tokens must be true or false, not {type(asked).__name__}"
    )


def log_failure(request_id: str, reason: str, level: int = logging.WARNING) -> None:
    """Say that there will be no sample of a request, and why."""
    text = "No hidden states for request %s: %s"
    logger.log(level, text, shown(request_id), reason, stacklevel=2)


def remember(latest: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Note ``value`` as the latest, and forget the oldest beyond ``most``."""
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > most:
        latest.popitem(last=False)
