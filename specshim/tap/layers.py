"""Finds a model's decoder layers by running it: the list that runs in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Forward = Callable[..., Any]


class TapRefused(RuntimeError):
    """The tap cannot be shown to be right for this model; the message says why."""


@dataclass(frozen=True)
class DecoderLayers:
    """The decoder layers in order, and the name of their list inside the model."""

    name: str
    modules: tuple[torch.nn.Module, ...]


@contextmanager
def replaced_forward(
    module: torch.nn.Module, wrap: Callable[[Forward], Forward]
) -> Iterator[None]:
    """``module.forward`` replaced on the instance for as long as the context lasts."""
    own = module.__dict__.get("forward")
    module.forward = wrap(module.forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own  # type: ignore[method-assign]


@contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Run vLLM's compiled modules uncompiled, so that Python sees every layer call."""
    compiled = [
        m for m in model.modules() if getattr(m, "do_not_compile", None) is False
    ]
    stock = [m for m in model.modules() if m._compiled_call_impl is not None]
    calls = [m._compiled_call_impl for m in stock]
    for module in compiled:
        module.do_not_compile = True  # type: ignore[assignment]
    for module in stock:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module in compiled:
            module.do_not_compile = False  # type: ignore[assignment]
        for module, call in zip(stock, calls, strict=True):
            module._compiled_call_impl = call


def _lists(
    model: torch.nn.Module, count: int
) -> dict[tuple[int, ...], tuple[str, Sequence[torch.nn.Module]]]:
    """Module lists of ``count`` distinct members, once each, keyed by their ids."""
    found: dict[tuple[int, ...], tuple[str, Sequence[torch.nn.Module]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            members = list(module)
            key = tuple(id(member) for member in members)
            if len(members) == count == len(set(key)):
                found.setdefault(key, (name, members))
    return found


def find_decoder_layers(
    model: torch.nn.Module,
    count: int,
    run: Callable[[], object],
    ours: range | None = None,
) -> DecoderLayers:
    """The list of ``count`` modules that one forward runs once each and in order.

    A vision tower of the same depth does not run on text; of nested lists (Zamba2)
    the outer one holds the decoder layers.

    Args:
        model: the loaded model.
        count: number of decoder layers by the model's config.
        run: runs one eager forward of ``model``.
        ours: the layers that run on this pipeline stage; None: all of them. The list
            has as many members on every stage.

    Raises:
        TapRefused: no list, or more than one, fits.
    """
    lists = _lists(model, count)
    order: dict[tuple[int, ...], list[int]] = {key: [] for key in lists}
    inside: dict[tuple[int, ...], set[tuple[int, ...]]] = {key: set() for key in lists}
    running: list[tuple[int, ...]] = []

    def watch(key: tuple[int, ...], index: int) -> Callable[[Forward], Forward]:
        def wrap(forward: Forward) -> Forward:
            def watched(*args: Any, **kwargs: Any) -> Any:
                order[key].append(index)
                inside[key].update(running)
                running.append(key)
                try:
                    return forward(*args, **kwargs)
                finally:
                    running.pop()

            return watched

        return wrap

    with ExitStack() as stack:
        for key, (_, members) in lists.items():
            for index, member in enumerate(members):
                stack.enter_context(replaced_forward(member, watch(key, index)))
        run()

    expected = list(range(count) if ours is None else ours)
    in_order = [key for key in lists if order[key] == expected]
    outer = [key for key in in_order if not inside[key].intersection(in_order)]
    names = [lists[key][0] for key in outer]
    if len(outer) != 1:
        what = (
            "no list of modules" if not outer else "more than one: " + ", ".join(names)
        )
        raise TapRefused(
            f"the decoder layers of {type(model).__name__} were not found: the config "
            f"says {count} layers, and of its module lists of that length {what} ran "
            "once per layer and in order; use --specshim-route cache, and please "
            "report this model"
        )
    return DecoderLayers(names[0], tuple(lists[outer[0]][1]))
