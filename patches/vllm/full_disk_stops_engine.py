"""A full disk ends the server at the first sample that cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._sample_files import saving_with, say_unwritten, whole_file
from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import Fingerprint, Patch, Target


def save_kv_layer(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Write whole files; one that fails is missing, and the others are saved."""
    name = args[0] if args else kwargs["layer_name"]
    if name not in instance.cache_layers:  # the model's own attention
        return wrapped(*args, **kwargs)
    with saving_with(save_whole):
        return wrapped(*args, **kwargs)


def save_whole(
    save: Callable[..., None], tensors: dict[str, Any], filename: str, **options: Any
) -> None:
    """``save``, whole or not at all; an error is logged and not raised."""
    try:
        with whole_file(filename) as temporary:
            save(tensors, temporary, **options)
    except Exception as error:
        say_unwritten(filename, error)


PATCH = Patch(
    id="full-disk-stops-engine",
    summary="a sample that cannot be written stops the engine",
    why=(
        "The engine dies in the forward with 'No space left on device', and part of "
        "the sample stays under its final name: files are written by the model's own "
        "thread, unguarded."
    ),
    see=(
        "With the storage on a small tmpfs that runs full, the engine is gone after "
        "the first sample that does not fit. With the patch the log says 'No hidden "
        "states in' and its path, the engine goes on, and no part of that file is "
        "left."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.17.0,<0.22.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.save_kv_layer",
            wrapper=save_kv_layer,
            forms=(
                Fingerprint(
                    parameters=("self", "layer_name", "kv_layer", "attn_metadata"),
                    contains=(
                        "safetensors.torch.save_file(tensors, request.filename)",
                    ),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.22.0",
)
