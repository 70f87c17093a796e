"""With the engine in this process, the files are not there when generate() returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import OPEN, Fingerprint, Patch, Target

from .cpu_copy_stream import copying


def get_output(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Save what finished in this step; after the last step, until it is written.

    The scheduler's half hands a finished request to the worker's with the next step,
    and nobody need ask for one. One more step, if no request is left, lets the worker
    report, which frees the blocks.
    """
    outputs = wrapped(*args, **kwargs)
    scheduler = instance.engine_core.scheduler
    if not _savers(scheduler.connector):
        return outputs
    workers = _workers_here()
    for saver, worker in zip(_savers(scheduler.connector), workers, strict=False):
        with copying():
            for pending in saver._pending_saves.values():
                worker._submit_async_write(pending)
        saver._pending_saves.clear()
    if not scheduler.has_unfinished_requests():
        for worker in workers:
            wait(list(worker._req_futures.values()))
        if scheduler.finished_req_ids:
            wrapped(*args, **kwargs)
    return outputs


def _savers(connector: Any) -> tuple[Any, ...]:
    """The stock connectors and their heirs among a connector and its children."""
    return tuple(c for c in _flat(connector) if hasattr(c, "_submit_async_write"))


def _workers_here() -> tuple[Any, ...]:
    """The workers' halves, empty where the workers have processes of their own."""
    from vllm.distributed.kv_transfer import (
        get_kv_transfer_group,
        has_kv_transfer_group,
    )

    return _savers(get_kv_transfer_group()) if has_kv_transfer_group() else ()


def _flat(connector: Any) -> Iterator[Any]:
    yield connector
    yield from getattr(connector, "_connectors", ())


PATCH = Patch(
    id="inproc-never-flushed",
    summary="an engine in the caller's process leaves the last files unwritten",
    why=(
        "With VLLM_ENABLE_V1_MULTIPROCESSING=0, generate() returns paths under which "
        "there is only a lock file, held by this very process: load_hidden_states "
        "waits for ever. What finished is saved in the next step, and there is none."
    ),
    see=(
        "With VLLM_ENABLE_V1_MULTIPROCESSING=0, look at the hidden_states_path of an "
        "output once generate() has returned: there is only its .lock file. With the "
        "patch the file is there, and load_hidden_states returns."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.24.0,<=0.32.0"),
    targets=(
        Target(
            name="vllm.v1.engine.core_client.InprocClient.get_output",
            wrapper=get_output,
            forms=(
                Fingerprint(
                    parameters=("self",), contains=("self.engine_core.step_fn()",)
                ),
            ),
        ),
    ),
    processes=("engine core",),
    remove_when=OPEN,
)
