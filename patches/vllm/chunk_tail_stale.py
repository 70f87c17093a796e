"""The last chunk of a prompt is not saved where it needs no new block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target


def build_connector_meta(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Have each step saved that computes tokens of a prompt, new blocks or none."""
    output = args[0] if args else kwargs["scheduler_output"]
    cached = output.scheduled_cached_reqs
    blocks = cached.new_block_ids
    # 0.17 asserts new blocks, so it is shown the requests that have some.
    grown = [i for i, new in enumerate(blocks) if new is not None]
    seen = replace(
        cached,
        req_ids=[cached.req_ids[i] for i in grown],
        new_block_ids=[blocks[i] for i in grown],
    )
    meta = wrapped(replace(output, scheduled_cached_reqs=seen))
    for index, req_id in enumerate(cached.req_ids):
        request = instance._active_requests.get(req_id)
        if request is None or blocks[index] is not None:
            continue
        prompt = request.prompt_token_ids or []
        if cached.num_computed_tokens[index] < len(prompt):
            meta.add_request(
                req_id=req_id,
                filename=instance._request_filenames[req_id],
                token_ids=prompt,
                block_ids=instance._req_blocks[req_id],
                block_size=instance._block_size,
                new_req=False,
            )
    return meta


LOOK = ("for i, req_id in enumerate(cached_reqs.req_ids)", "block_ids=req_block_ids")

PATCH = Patch(
    id="chunk-tail-stale",
    summary="the last rows of a prompt that is prefilled in chunks are stale",
    why=(
        "The final rows of a file, fewer than a block, are zeros or another "
        "request's: the connector saves a later chunk only if it got a new block. "
        "0.17 stops with an AssertionError there, in decode steps as well."
    ),
    see=(
        "Send a prompt longer than max_num_batched_tokens, and send it to a server "
        "with --no-enable-chunked-prefill: where the last chunk fits into a block "
        "that was begun, the last rows of the two files differ. With the patch they "
        "agree up to rounding."
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
                    contains=(*LOOK, "if new_block_ids is None: continue"),
                ),
                Fingerprint(
                    parameters=("self", "scheduler_output"),
                    contains=(*LOOK, "assert new_block_ids is not None"),
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
