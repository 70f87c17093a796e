"""The way that a server's samples leave by, as kv_connector_extra_config says it."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from specshim import _vllm_facts as facts
from specshim._backends import BACKEND_KEY, BACKENDS, FILE
from specshim._sample_files import sample_labels
from specshim.tap.layers import TapRefused
from specshim.tap.parts import Share
from specshim.tap.places import FilePlaces, Places
from specshim.tap.sink import FileSink, Sink
from specshim.tap.staged import StagedSink
from specshim.tap.taps import Taps
from specshim.tap.worker import WorkerSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.specshim")


@dataclass(frozen=True)
class Outlet:
    """One backend, and both halves' parts of it; made by :func:`outlet_of`."""

    backend: str
    extra: Mapping[str, Any]
    layer_ids: tuple[int, ...]
    config: VllmConfig

    @property
    def storage(self) -> str | None:
        """The folder of its files; None where samples are no files."""
        if self.backend == "mooncake":
            return None
        return str(self.extra.get("shared_storage_path", facts.STOCK_STORAGE))

    @property
    def locks(self) -> bool:
        """Whether clients wait for files through their locks."""
        return bool(self.extra.get("use_synchronization_lock", True))

    def places(self) -> Places:
        """The scheduler's part."""
        if self.storage is not None:
            custom = bool(self.extra.get("allow_custom_save_path", False))
            return FilePlaces(self.storage, custom)
        from specshim.tap.mooncake import MooncakePlaces, RowShape

        model = self.config.model_config
        row = RowShape(len(self.layer_ids), model.get_hidden_size(), model.dtype)
        return MooncakePlaces(row)

    def sink(self, taps: Taps) -> Sink:
        """The worker's part, for the rows of its ``taps``.

        Raises:
            TapRefused: pipeline stages cannot share what this backend writes.
        """
        share = share_of(taps)
        if share is not None and self.backend != FILE:
            raise TapRefused(
                f"the backend {self.backend} cannot be used with pipeline parallelism, "
                "because a sample of it holds all layers at once and each stage has "
                f"only its own; use the backend {FILE}"
            )
        if self.backend == "mooncake":
            from specshim.tap.mooncake import MAX_BUFFER_BYTES, MooncakeSink, RowShape

            return MooncakeSink(
                RowShape(taps.rows.shape[1], taps.rows.shape[2], taps.rows.dtype),
                self._mooncake_settings(),
                int(self.extra.get("max_buffer_bytes", MAX_BUFFER_BYTES)),
                self._threads(),
            )
        kind: Callable[..., FileSink] = FileSink
        if share is not None:
            kind = partial(StagedSink, share=share)
        if self.backend == "fp8":
            from specshim.tap.fp8 import FP8Sink

            kind = FP8Sink
        return kind(
            slots=len(self.layer_ids),
            hidden=taps.rows.shape[2],
            dtype=str(taps.rows.dtype).removeprefix("torch."),
            metadata=sample_labels(self.config, self.layer_ids, "tap"),
            lock=self.locks,
            storage=self.storage,
        )

    def settings(self, taps: Taps, *, sync: bool) -> WorkerSettings:
        """Bounds of the writing side."""
        share = share_of(taps)
        extra, default = self.extra, WorkerSettings
        return WorkerSettings(
            threads=self._threads(),
            max_backlog_bytes=int(
                extra.get("max_backlog_bytes", default.max_backlog_bytes)
            ),
            max_backlog_seconds=float(
                extra.get("max_backlog_seconds", default.max_backlog_seconds)
            ),
            sync=sync,
            early=share is not None and not share.completes,
        )

    def _threads(self) -> int:
        default: Any = WorkerSettings.threads
        if self.backend == "mooncake":
            from specshim.tap.mooncake import WRITERS

            default = self._mooncake_settings().get("num_writer_threads", WRITERS)
        return int(self.extra.get("num_writer_threads", default))

    def _mooncake_settings(self) -> Mapping[str, Any]:
        settings = self.extra.get("mooncake")
        return settings if isinstance(settings, Mapping) else {}


def outlet_of(config: VllmConfig, layer_ids: tuple[int, ...]) -> Outlet:
    """The server's outlet.

    Raises:
        TapRefused: there is no such backend.
    """
    extra = dict(config.kv_transfer_config.kv_connector_extra_config or {})
    backend = str(extra.get(BACKEND_KEY) or FILE)
    if backend not in BACKENDS:
        raise TapRefused(
            f"{BACKEND_KEY} in kv_connector_extra_config is {backend!r}; it takes "
            f"{', '.join(BACKENDS)}"
        )
    return Outlet(backend, extra, layer_ids, config)


def share_of(taps: Taps) -> Share | None:
    """What this pipeline stage writes of each file; None: all, or nothing at all."""
    stage = taps.stage
    others = tuple(r for r in stage.owners(taps.layer_ids) if r != stage.rank)
    return Share(stage.rank, others, taps.slots) if others and taps.slots else None


def waits_for_memory(step_bytes: int, max_bytes: int) -> str | None:
    """A sentence where a step's rows and the next one's do not fit beside each other.

    Args:
        step_bytes: of the rows of a step of ``max_num_batched_tokens``.
        max_bytes: of host memory, ``max_backlog_bytes``.
    """
    if 2 * step_bytes <= max_bytes:
        return None
    gib = 1 << 30
    return (
        f"the rows of a step may take {step_bytes / gib:.1f} GiB and max_backlog_bytes "
        f"is {max_bytes / gib:.1f} GiB, so the server waits in each large step until "
        "rows are written; set max_backlog_bytes in kv_connector_extra_config to "
        f"{3 * step_bytes} or more, or lower --max-num-batched-tokens"
    )


def raise_file_limit(max_num_seqs: int) -> None:
    """A sample has three descriptors; vLLM raises only the limit of its API server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    needed = 3 * max_num_seqs + 512
    if hard != infinite and hard < needed:
        logger.warning(
            "specshim: %d requests at a time may need %d open files, and the limit is "
            "%d; raise it with `ulimit -Hn`.",
            max_num_seqs,
            needed,
            hard,
        )
    if soft != infinite and soft < needed:
        most = needed if hard == infinite else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
