"""Padding of a CUDA graph batch overwrites the last slot of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target


def basic_cache(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Send the rows of padding to block 0, which vLLM gives to no request."""
    named = {**dict(zip(PARAMETERS, args, strict=False)), **kwargs}
    return wrapped(**{**named, "slot_mapping": named["slot_mapping"].clamp_min(0)})


PARAMETERS = ("to_cache", "kv_cache", "slot_mapping")

PATCH = Patch(
    id="padding-slot-overwrite",
    summary="padding overwrites the row in the last slot of the KV cache",
    why=(
        "Without --enforce-eager one row of one request is junk now and then: padded "
        "rows have slot -1, which is the last slot of the last block."
    ),
    see=(
        "It takes a KV cache that is used to its last block, so give it few (--num-"
        "gpu-blocks-override) and send one prompt again and again: now and then a "
        "file differs from the others in a single row. With the patch, or with "
        "--enforce-eager, none does."
    ),
    upstream=("vllm#43810", "vllm#43869", "vllm#46301"),
    affects=SpecifierSet(">=0.17.0,<0.25.0"),
    targets=(
        Target(
            name="vllm.model_executor.models.extract_hidden_states.basic_cache",
            wrapper=basic_cache,
            forms=(
                Fingerprint(
                    parameters=PARAMETERS,
                    contains=("[slot_mapping] = to_cache",),
                    lacks=("clamp",),
                ),
                Fingerprint(
                    parameters=PARAMETERS,
                    contains=("slot_mapping % block_size] = to_cache",),
                    lacks=("clamp",),
                ),
            ),
            fixed=Fingerprint(
                parameters=PARAMETERS, contains=("slot_mapping.clamp_min(0)",)
            ),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.25.0",
)
