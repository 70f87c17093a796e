"""A preempted request is saved from the blocks that it had before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target


def build_connector_meta(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """A resumed request's new blocks are all it has: forget the old ones."""
    output = args[0] if args else kwargs["scheduler_output"]
    for req_id in output.scheduled_cached_reqs.resumed_req_ids:
        instance._req_blocks.get(req_id, []).clear()
    return wrapped(*args, **kwargs)


PATCH = Patch(
    id="resumed-blocks-stale",
    summary="a request that was preempted is saved with rows of other requests",
    why=(
        "Where the KV cache runs full, files have the right length and rows of other "
        "requests: the connector adds the blocks of a resumed request to those that "
        "were taken from it, and reads the latter."
    ),
    see=(
        "Where vllm:num_preemptions of /metrics counts, send the prompts of that time "
        "again, one at a time: the files of those that were preempted differ. With "
        "the patch they agree up to rounding."
    ),
    upstream=("vllm#43805",),
    affects=SpecifierSet(">=0.17.0,<0.22.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.build_connector_meta",
            wrapper=build_connector_meta,
            forms=(
                Fingerprint(
                    parameters=("self", "scheduler_output"),
                    contains=("req_block_ids.extend(block_ids)",),
                    lacks=("resumed_req_ids",),
                ),
            ),
            fixed=Fingerprint(
                parameters=("self", "scheduler_output"), lacks=("cached_reqs",)
            ),
        ),
    ),
    processes=("engine core",),
    remove_when="vllm>=0.22.0",
)
