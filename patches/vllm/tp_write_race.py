"""Every tensor-parallel rank writes the same file at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target


def save_kv_layer(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Rank 0 has the same rows as the others, and is the one that writes them."""
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    if get_tensor_model_parallel_rank() == 0:
        return wrapped(*args, **kwargs)
    return None


PARAMETERS = ("self", "layer_name", "kv_layer", "attn_metadata")

PATCH = Patch(
    id="tp-write-race",
    summary="with tensor parallelism, all ranks write each file",
    why=(
        "With tensor_parallel_size above 1 a fast reader meets torn or truncated "
        "files and the disk sees each of them once per rank; in 0.22 and 0.23 the "
        "ranks also wait for each other's file lock in the forward pass."
    ),
    see=(
        "Watch the storage while one prompt is sent (`inotifywait -m -e close_write "
        "FOLDER`): its file is written once for each rank. With the patch it is "
        "written once."
    ),
    upstream=("vllm#43805",),
    affects=SpecifierSet(">=0.17.0,<0.24.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.save_kv_layer",
            wrapper=save_kv_layer,
            forms=(
                Fingerprint(
                    parameters=PARAMETERS,
                    contains=("safetensors.torch.save_file(tensors",),
                ),
                Fingerprint(
                    parameters=PARAMETERS, contains=("self._pending_copies.append(",)
                ),
            ),
            fixed=Fingerprint(
                parameters=PARAMETERS, lacks=("_get_connector_metadata",)
            ),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.24.0",
)
