"""vLLM's KV connector interface over the tap: it stores states and never touches KV."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.sampling_params import RequestOutputKind

from specshim._storage import storage_problem, storage_warning
from specshim.patching import LEDGER
from specshim.tap.folder import supports_locks
from specshim.tap.hooks import LOADED_MODEL
from specshim.tap.layers import TapRefused
from specshim.tap.leftovers import remove_leftovers
from specshim.tap.outlet import outlet_of, raise_file_limit, waits_for_memory
from specshim.tap.samples import Samples, StepSamples
from specshim.tap.stages import check_shared
from specshim.tap.taps import Taps
from specshim.tap.worker import TapWorker

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.specshim")

TAPS = "_specshim_taps"
"""Attribute of the worker's CompilationConfig, which the copies of a VllmConfig share:
each connector of a MultiConnector has one."""


@dataclass
class TapMetadata(KVConnectorMetadata):
    """What the scheduler tells the worker about one step."""

    step: StepSamples = field(default_factory=StepSamples)
    handled: bool = False


def layer_ids_of(vllm_config: VllmConfig) -> tuple[int, ...]:
    """The layer ids of a tapped server, from ``additional_config["specshim"]``.

    Raises:
        TapRefused: there are none.
    """
    additional = vllm_config.additional_config
    ours = additional.get("specshim") if isinstance(additional, Mapping) else None
    ids = ours.get("layer_ids") if isinstance(ours, Mapping) else None
    if not ids:
        raise TapRefused(
            "the tap connector needs the layer ids in additional_config, as "
            '{"specshim": {"tap": 1, "layer_ids": [...]}}; start the server with '
            "python -m specshim.launch_vllm"
        )
    return tuple(int(layer_id) for layer_id in ids)


class News:
    """Failures on their way from a worker's process to the scheduler's.

    It travels in the place of the connector's statistics, which every release takes
    along with a step's output, before it answers the requests of that step. On arrival
    it hands itself over and becomes None, so that vLLM finds no statistics.
    """

    def __init__(self, failures: Mapping[int, str]) -> None:
        self._failures = failures

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return _arrived, (self._failures,)


def schedulers_here() -> list[TapConnector]:
    """The scheduler's halves of this process; a fork has its parent's, too."""
    return [one for one in list(TapConnector.schedulers) if one._process == os.getpid()]


def _arrived(failures: Mapping[int, str]) -> None:
    if not failures:
        return
    for connector in schedulers_here():
        assert connector._samples is not None
        connector._samples.failed(failures)


class TapConnector(KVConnectorBase_V1, SupportsHMA):
    """Sends tapped hidden states to files or to Mooncake, as its outlet says.

    It holds no KV block and delays none.
    """

    schedulers: ClassVar[WeakSet[TapConnector]] = WeakSet()
    """The scheduler's halves; those of this process are ``schedulers_here()``."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        role: KVConnectorRole,
        kv_cache_config: Any = None,
    ) -> None:
        super().__init__(
            vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config
        )
        self._config = vllm_config
        self._layer_ids = layer_ids_of(vllm_config)
        self._outlet = outlet_of(vllm_config, self._layer_ids)
        self._sync = bool(self._outlet.extra.get("sync", False))
        self._process = os.getpid()
        self._worker: TapWorker | None = None
        self._news: News | None = None
        self._samples: Samples | None = None
        if self._outlet.storage is not None:
            self._check_storage(self._outlet.storage, role)
        places = self._outlet.places()  # in both halves: what is missing shows early
        if role == KVConnectorRole.SCHEDULER:
            engine = str(vllm_config.kv_transfer_config.engine_id)
            several = re.search(r"_dp\d+$", engine) is not None  # vLLM's suffix
            stages = vllm_config.parallel_config.pipeline_parallel_size > 1
            self._samples = Samples(
                places, self._sync, data_parallel=several, stages=stages
            )
            self.schedulers.add(self)

    def _check_storage(self, storage: str, role: KVConnectorRole) -> None:
        problem = storage_problem(storage, create=True)
        if problem is not None:
            raise TapRefused(problem)
        if role == KVConnectorRole.SCHEDULER:
            warning = storage_warning(storage)
            if warning:
                logger.warning("specshim: %s", warning)
            removed = remove_leftovers(storage)
            if removed:
                logger.info(
                    "specshim: removed %d files that a killed server left in %s.",
                    removed,
                    storage,
                )
        if self._outlet.locks and not self._sync and not supports_locks(storage):
            self._sync = True  # scheduler and worker find the same
            if role == KVConnectorRole.SCHEDULER:
                logger.warning(
                    "specshim: %s is on a file system without flock, so files are "
                    "completed before the response leaves, which is slower.",
                    storage,
                )

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Called once per worker when its caches exist: the server is about to start.

        Raises:
            TapRefused: this worker's model is not tapped.
        """
        from vllm.distributed.parallel_state import (
            get_pp_group,
            get_tensor_model_parallel_rank,
        )

        taps: Taps | None = getattr(self._config.compilation_config, TAPS, None)
        if taps is None:
            raise TapRefused(f"this worker's model is not tapped, because {_why()}")
        if taps.layer_ids != self._layer_ids:
            raise TapRefused(
                f"the model is tapped at layers {list(taps.layer_ids)}, the connector "
                f"wants {list(self._layer_ids)}"
            )
        if get_tensor_model_parallel_rank() != 0:
            return  # rank 0 holds the same rows and writes them
        if len(taps.stage.owners(taps.layer_ids)) > 1 and self._outlet.storage:
            check_shared(self._outlet.storage, get_pp_group())
        if not taps.slots:
            return  # other stages have all the layers that are asked for
        raise_file_limit(self._config.scheduler_config.max_num_seqs)
        sink = self._outlet.sink(taps)
        settings = self._outlet.settings(taps, sync=self._sync)
        waits = waits_for_memory(taps.rows.nbytes, settings.max_backlog_bytes)
        if waits and taps.stage_rows is not None:  # the CPU waits for each step anyway
            logger.warning("specshim: %s.", waits)
        # The scheduler's half is made after this.
        self._worker = TapWorker(taps, sink, settings, lambda: bool(schedulers_here()))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the forward of a step."""
        super().bind_connector_metadata(connector_metadata)
        metadata = self._unhandled()
        if self._worker is not None and metadata is not None:
            self._worker.begin(metadata.step)

    def wait_for_save(self) -> None:
        """After the forward, or (from 0.31) in a step without one."""
        self._handle_step()

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        """The end of every step; up to 0.30 the only call in one without a forward."""
        self._handle_step()
        return None, None

    def _unhandled(self) -> TapMetadata | None:
        if not self.has_connector_metadata():
            return None
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, TapMetadata)
        return None if metadata.handled else metadata

    def _handle_step(self) -> None:
        metadata = self._unhandled()
        if self._worker is not None and metadata is not None:
            metadata.handled = True
            self._worker.step(metadata.step)

    def get_kv_connector_stats(self) -> Any:
        """After the end of every step: no statistics, but what has failed, if any."""
        if self._worker is None:
            return None
        failures = self._worker.failures()
        if not failures:
            return None
        if schedulers_here():  # engine and worker share a process
            _arrived(failures)
            return None
        group: Any = get_kv_transfer_group()
        if group is not self:  # a child of a MultiConnector, which
            self._news = News(failures)  # counts on statistics of its children
            return None
        return News(failures)

    def build_connector_worker_meta(self) -> Any:
        """After the above: the same from a child of a MultiConnector, if any."""
        news, self._news = self._news, None
        return news

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing is ever loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is ever loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """The KV cache is not saved."""

    def shutdown(self) -> None:
        """Complete what is under way."""
        if self._worker is not None:
            self._worker.shutdown()

    # Scheduler side

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """No token is ever loaded from outside."""
        return 0, False

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        """Nothing is ever loaded; this is where whole requests are seen first."""
        if getattr(request, "resumable", False):
            assert self._samples is not None
            self._samples.is_session(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Note the step's requests and their rows."""
        assert self._samples is not None
        starts: dict[str, int] = {}
        for new in scheduler_output.scheduled_new_reqs:
            starts[new.req_id] = new.num_computed_tokens
            token_ids, embeds = new.prompt_token_ids, new.prompt_embeds
            prompt_rows = len(token_ids) if token_ids is not None else embeds.shape[0]
            if embeds is not None:
                token_ids = None  # where both are there, some ids are placeholders
            sampling = new.sampling_params
            self._samples.open(
                new.req_id,
                token_ids,
                prompt_rows,
                _parameters(sampling),
                streamed=getattr(sampling, "output_kind", None)
                == RequestOutputKind.DELTA,
            )
        cached = scheduler_output.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        counts = scheduler_output.num_scheduled_tokens
        for request_id, count in counts.items():
            if self._samples.wants_rows(request_id):
                self._samples.schedule(request_id, starts[request_id], count)
        return TapMetadata(self._samples.take_step(counts))

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Tell the client where its sample is; the blocks are free at once."""
        from vllm.v1.request import RequestStatus

        assert self._samples is not None
        aborted = request.status == RequestStatus.FINISHED_ABORTED
        here = self._worker_here()
        if here is not None and not aborted:
            _, worker = here
            worker.wait_for_file(self._samples.told_with(request.request_id))
            _arrived(worker.failures())
        parameters = self._samples.finish(
            request.request_id, request.all_token_ids, aborted
        )
        self._hand_over_in_process()
        return False, parameters

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As :meth:`request_finished`, for the hybrid KV cache manager."""
        return self.request_finished(request, [])

    def withdraw(self, request_ids: Iterable[str]) -> None:
        """Take back what was told of requests that have ended: their clients left.

        The worker does so in the next step.
        """
        assert self._samples is not None
        self._samples.withdraw(request_ids)
        self._hand_over_in_process()

    def _hand_over_in_process(self) -> None:
        """Where engine and worker share a process, no later step may come (C4)."""
        here = self._worker_here()
        if here is None:
            return
        connector, worker = here
        if connector._unhandled() is not None:
            return  # it may open the very sample; what has ended goes with the next
        assert self._samples is not None
        worker.step(self._samples.take_ended())

    @staticmethod
    def _worker_here() -> tuple[TapConnector, TapWorker] | None:
        """The worker's half, where engine and worker share a process."""
        if not has_kv_transfer_group():
            return None
        group: Any = get_kv_transfer_group()
        all_of_it = getattr(group, "_connectors", [group])  # a MultiConnector's
        for one in all_of_it:
            if isinstance(one, TapConnector) and one._worker is not None:
                return one, one._worker
        return None


def _why() -> str:
    """Why the hook that taps the model did not run in this process."""
    entry = LEDGER.entries.get(LOADED_MODEL.id)
    if entry is None:
        return (
            "specshim's plugin was not loaded in it; install specshim in vLLM's own "
            "environment, list it in VLLM_PLUGINS if that is set, and do not set "
            "SPECSHIM=0"
        )
    return f"its hook {LOADED_MODEL.id} is {entry.state}: {entry.reason}"


def _parameters(sampling_params: Any) -> object:
    """A request's ``kv_transfer_params``, whatever the client gave; None: none."""
    extra = getattr(sampling_params, "extra_args", None) or {}
    return extra.get("kv_transfer_params")
