"""The start-up proof: what is recorded is what the next layer takes as its stream.

Layers differ in what they return, and the shape does not tell: a second tensor may be
a residual still to be added, or a stale one (Granite 4: adding it is wrong by 98 %).
So one eager dummy forward replaces every layer's output by noise and watches what the
next layer, or the final norm, makes of it. Noise also keeps the proof clear of the NaNs
that dummy runs without caches produce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specshim.tap.layers import DecoderLayers, TapRefused, replaced_forward
from specshim.tap.proof import Proof
from specshim.tap.watch import Watch


def prove(
    model: torch.nn.Module,
    layers: DecoderLayers,
    layer_ids: Sequence[int],
    hidden: int,
    tokens: int,
    run: Callable[[], object],
    first: int = 0,
) -> Proof:
    """Show, for each id in ``layer_ids``, how to read the stream entering that layer.

    Args:
        model: the loaded model.
        layers: its decoder layers.
        layer_ids: ids 0..n; id k is the stream entering layer k, n the last output.
        hidden: hidden size.
        tokens: rows of the forward that ``run`` makes.
        run: runs one eager dummy forward of ``model``.
        first: the first layer that runs on this pipeline stage.

    Raises:
        TapRefused: an id could not be shown; the message names the layer and why.
    """
    count = len(layers.modules)
    for layer_id in layer_ids:
        if not 0 <= layer_id <= count:
            raise TapRefused(
                f"layer id {layer_id} is out of range: {type(model).__name__} has "
                f"{count} layers, so ids go from 0 (embeddings) to {count}"
            )
    keep = [i - 1 for i in layer_ids if i > first]
    proof = _watched(model, layers, Watch(tokens, hidden, count, keep, first), run)
    if proof.partial:
        watch = Watch(tokens, hidden, count, keep, first)
        with _Reads(watch):
            proof = _watched(model, layers, watch, run)
    for layer_id in layer_ids:
        index = layer_id - 1
        if index not in proof.streams and not (layer_id == count and proof.final_norm):
            why = proof.failures.get(index, "the dummy forward did not show its use")
            where = (
                f"the input of {layers.name}[{first}]"
                if index < first
                else f"{layers.name}[{index}] ({type(layers.modules[index]).__name__})"
            )
            raise TapRefused(
                f"layer id {layer_id} of {type(model).__name__} cannot be tapped: at "
                f"{where}, {why}; use --specshim-route cache, and please report this "
                "model"
            )
    return proof


def _watched(
    model: torch.nn.Module,
    layers: DecoderLayers,
    watch: Watch,
    run: Callable[[], object],
) -> Proof:
    """What ``watch`` sees in one forward."""
    members = set(layers.modules)
    returned: list[object] = []
    with ExitStack() as stack:
        for index, layer in enumerate(layers.modules):
            stack.enter_context(replaced_forward(layer, watch.layer(index)))
        for module in model.modules():
            if module not in members:
                handle = module.register_forward_pre_hook(
                    watch.on_call, with_kwargs=True, prepend=True
                )
                stack.callback(handle.remove)
        handle = model.register_forward_hook(
            lambda module, args, output: returned.append(output)
        )
        stack.callback(handle.remove)
        run()
    watch.end(returned[-1] if returned else None)
    return watch.proof


class _Reads(TorchDispatchMode):
    """Tells the watch of every tensor that an operation takes."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self._watch.was_read(value, str(func))
        return func(*args, **(kwargs or {}))
