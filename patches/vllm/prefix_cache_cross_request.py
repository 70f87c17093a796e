"""A prompt with a cached prefix is saved with too few rows, or with others' rows.

The connector of 0.22 and 0.23 takes a prompt's slots from this step's slot mapping,
which holds only the tokens that the step computes, and only in the batch's order. All
slots of a prompt, cached or not, are in the block table of the hidden states' layer;
upstream reads them there from 0.24 on. That one correction mends this fault and
batch-order-offset, so each of the two declarations brings it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from specshim import _kv_groups as layout
from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("vllm.specshim")


def build_connector_meta(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Scheduler: each new request carries its block table to the worker.

    A prompt that this step does not finish (images can split one, though chunked
    prefill is off) is not saved at all: half of its rows are not there yet, and this
    connector does not come back to it. A subclass's own metadata are left alone.
    """
    output = args[0] if args else kwargs["scheduler_output"]
    meta = wrapped(*args, **kwargs)
    group = hidden_group(instance._kv_cache_config)
    new = {request.req_id: request for request in output.scheduled_new_reqs}
    requests = getattr(meta, "requests", None)
    if group is None or requests is None:
        return meta
    if not all(getattr(request, "req_id", None) in new for request in requests):
        return meta
    saved = []
    for request in requests:
        data = new[request.req_id]
        done = data.num_computed_tokens + output.num_scheduled_tokens[data.req_id]
        if done < request.token_ids.shape[0]:
            logger.warning(
                "specshim: the prompt of %s is computed in several steps, which the "
                "connector of vLLM 0.22 and 0.23 cannot save; it has no file.",
                request.req_id,
            )
            continue
        request.block_ids = list(data.block_ids[group])
        saved.append(request)
    meta.requests = saved
    return meta


def save_kv_layer(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Worker: the connector slices all slots of its requests, one after the other."""
    from vllm.forward_context import get_forward_context

    layer = args[0] if args else kwargs["layer_name"]
    context = get_forward_context()
    of_the_step = context.slot_mapping
    if layer not in instance.cache_layers or isinstance(of_the_step, ByBlockTable):
        return wrapped(*args, **kwargs)
    slots = prompt_slots(instance)
    if slots is None:
        return wrapped(*args, **kwargs)
    device = of_the_step[layer].device
    if device.type == "cuda":
        # Copied without waiting for the forward pass, and read on the connector's
        # own stream after this call has let go of it.
        slots = slots.pin_memory().to(device, non_blocking=True)
        slots.record_stream(instance._get_copy_stream())
    context.slot_mapping = ByBlockTable({**of_the_step, layer: slots.to(device)})
    try:
        return wrapped(*args, **kwargs)
    finally:
        context.slot_mapping = of_the_step


class ByBlockTable(dict[str, "torch.Tensor"]):
    """A slot mapping that is corrected already, by the other declaration."""


def prompt_slots(connector: Any) -> torch.Tensor | None:
    """The slot of each token of the prompts to save: int64 ``[tokens of all]``.

    None where they came without block tables, in a subclass's own metadata.
    """
    import torch

    config = connector._kv_cache_config
    group = hidden_group(config)
    requests = getattr(connector._get_connector_metadata(), "requests", None)
    if group is None or requests is None:
        return None
    if not all(hasattr(request, "block_ids") for request in requests):
        return None
    size = config.kv_cache_groups[group].kv_cache_spec.block_size
    places = torch.arange(size)
    slots = [places[:0]]
    for request in requests:
        blocks = torch.tensor(request.block_ids, dtype=torch.int64)
        table = (blocks[:, None] * size + places).flatten()
        slots.append(table[: request.token_ids.shape[0]])
    return torch.cat(slots)


def hidden_group(config: Any) -> int | None:
    """The KV cache group with the hidden states' layer, by the name vLLM gives it."""
    return layout.holder(getattr(config, "kv_cache_groups", ()))


TARGETS = (
    Target(
        name=f"{STOCK_CLASS}.build_connector_meta",
        wrapper=build_connector_meta,
        forms=(
            Fingerprint(
                parameters=("self", "scheduler_output"),
                contains=("for new_req in scheduler_output", "meta.add_request("),
                lacks=("block_size",),
            ),
        ),
        fixed=Fingerprint(contains=("meta.pending_saves",)),
    ),
    Target(
        name=f"{STOCK_CLASS}.save_kv_layer",
        wrapper=save_kv_layer,
        forms=(
            Fingerprint(
                parameters=("self", "layer_name", "kv_layer", "attn_metadata"),
                contains=(
                    "get_forward_context().slot_mapping[layer_name]",
                    "slot_mapping[offset : offset + num_tokens]",
                ),
            ),
        ),
        fixed=Fingerprint(
            parameters=("self", "layer_name"), lacks=("_get_connector_metadata",)
        ),
    ),
)

PATCH = Patch(
    id="prefix-cache-cross-request",
    summary="a prompt with a cached prefix gets too few rows, or other requests' rows",
    why=(
        "Files have fewer hidden states than tokens; where other prompts shared the "
        "step the length is right and the rows are theirs. Prefix caching is on by "
        "default, so any shared system prompt is enough."
    ),
    see=(
        "Send a prompt twice, one at a time: hidden_states of the second file has "
        "fewer rows than its token_ids. With the patch both files have a row for each "
        "token."
    ),
    upstream=("vllm#44485", "vllm#43805"),
    affects=SpecifierSet(">=0.22.0,<0.24.0"),
    targets=TARGETS,
    processes=("engine core", "worker"),
    remove_when="vllm>=0.24.0",
)
