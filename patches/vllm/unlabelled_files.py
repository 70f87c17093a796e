"""Files of the stock connector do not say of which model and layers they are.

From 0.22 on labelled files are written whole as well: half-written-files names the same
writer, which is the stock one only with both patches switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._sample_files import (
    LABELLED,
    sample_labels,
    saving_with,
    whole_writer,
)
from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import OPEN, Fingerprint, Patch, Target

LABELS = "_specshim_labels"  # of a worker's half up to 0.21


def init(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """From 0.22 on writer threads write the files."""
    wrapped(*args, **kwargs)
    writer = whole_writer(instance) if _has_writer(instance) else None
    if writer is not None:
        writer.labels = labels_of(instance)


def save_kv_layer(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Up to 0.21 this method does, which runs for every layer of attention."""
    name = args[0] if args else kwargs["layer_name"]
    if name not in instance.cache_layers or _has_writer(instance):
        return wrapped(*args, **kwargs)
    if LABELS not in vars(instance):
        setattr(instance, LABELS, labels_of(instance))
    with saving_with(partial(save_labelled, getattr(instance, LABELS))):
        return wrapped(*args, **kwargs)


def _has_writer(connector: Any) -> bool:
    return hasattr(connector, "_write_tensors")


def labels_of(connector: Any) -> dict[str, str]:
    """The labels of this server's files.

    Where layers were asked for out of order, or twice, nearly all models give them in
    the order of the layers, once, and some as asked: then ``layer_ids`` is left out.
    """
    config = connector._vllm_config
    draft = config.speculative_config.draft_model_config.hf_config
    ids = list(getattr(draft, "eagle_aux_hidden_state_layer_ids", ()))
    plain = ids == sorted(set(ids))
    return sample_labels(config, ids if plain else None, "cache")


def save_labelled(
    labels: Mapping[str, str],
    save: Callable[..., None],
    tensors: dict[str, Any],
    filename: str,
    **options: Any,
) -> None:
    """Save with ``labels`` added to the metadata, if ``tensors`` are a sample's."""
    if tensors.keys() >= LABELLED:
        rows = str(tensors["hidden_states"].shape[0])
        known = options.get("metadata") or {}
        options["metadata"] = {**known, **labels, "num_tokens": rows}
    save(tensors, filename, **options)


PATCH = Patch(
    id="unlabelled-files",
    summary="files do not say which model and layers they are of",
    why=(
        "A folder of samples is used with another model, or with as many other layers, "
        "and training goes on with wrong features: the files carry no metadata that a "
        "reader could compare."
    ),
    see=(
        "safetensors.safe_open(FILE, 'pt').metadata() is None. With the patch it "
        "names the model, the layer ids and the releases of vLLM and specshim."
    ),
    upstream=("speculators#705",),
    affects=SpecifierSet(">=0.17.0,<=0.32.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.__init__",
            wrapper=init,
            forms=(
                Fingerprint(
                    parameters=("self", "vllm_config", "role", "kv_cache_config"),
                    contains=("eagle_aux_hidden_state_layer_ids",),
                ),
            ),
        ),
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
                Fingerprint(
                    parameters=("self", "layer_name", "kv_layer", "attn_metadata"),
                    lacks=("save_file(",),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when=OPEN,
)
