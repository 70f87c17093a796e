"""In a MultiConnector the stock connector is awaited on ranks that say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import OPEN, Fingerprint, Patch, Target

AWAITED = "_specshim_awaited_on_all_ranks"  # of a child


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Tell the children that vLLM waits for all ranks, where it does."""
    wrapped(*args, **kwargs)
    if instance.get_finished_count() is None:
        for child in instance._connectors:
            setattr(child, AWAITED, True)


def get_finished(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Where all ranks are awaited, those that save nothing have finished at once.

    Rank 0 reports a sample once its rows are copied, so that blocks stay until then.
    """
    sent, received = wrapped(*args, **kwargs)
    if instance._is_tp_rank_zero or not getattr(instance, AWAITED, False):
        return sent, received
    saves = getattr(instance._connector_metadata, "pending_saves", ())
    return {save.req_id for save in saves} or None, received


PATCH = Patch(
    id="multi-connector-never-frees",
    summary="beside another connector and with tensor parallelism, blocks stay taken",
    why=(
        "With tensor parallelism and the stock connector in a MultiConnector, beside "
        "one that says nothing of its finished requests (Nixl, offloading, ...), the "
        "KV cache fills up with finished requests until none is scheduled any more: "
        "the scheduler waits for a report of each rank, and rank 0 alone gives one."
    ),
    see=(
        "Send requests to an idle server and wait for the answers: "
        "vllm:kv_cache_usage_perc of /metrics has grown, and stays. With the patch it "
        "goes back to what it was."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.31.0,<=0.32.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.get_finished",
            wrapper=get_finished,
            forms=(
                Fingerprint(
                    parameters=("self", "finished_req_ids"),
                    contains=(
                        "for pending in connector_metadata.pending_saves",
                        "if event is not None: done_sending.add(req_id)",
                    ),
                ),
            ),
        ),
        Target(
            name=(
                "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"
                ".MultiConnector.__init__"
            ),
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=("self", "vllm_config", "role", "kv_cache_config"),
                    contains=("self._connectors.append(", "_extra_async_saves"),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when=OPEN,
)
