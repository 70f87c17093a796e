"""On the CPU the stock connector asks for CUDA streams, and the engine dies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim._vllm_facts import STOCK_CLASS
from specshim.patching import OPEN, Fingerprint, Patch, Target


def save_kv_layer(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Up to 0.23 the copy is made here, for the layer that holds the states."""
    name = args[0] if args else kwargs["layer_name"]
    if name not in instance.cache_layers:
        return wrapped(*args, **kwargs)
    with copying():
        return wrapped(*args, **kwargs)


def get_finished(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """From 0.24 the copy is made here, in whatever method a subclass has for it."""
    with copying():
        return wrapped(*args, **kwargs)


def copying() -> AbstractContextManager[None]:
    """Around whatever makes a copy of states: nothing where there are CUDA streams."""
    from vllm.platforms import current_platform

    return cpu_streams() if current_platform.is_cpu() else nullcontext()


@contextmanager
def cpu_streams() -> Iterator[None]:
    """``torch.cuda``'s streams and events are torch.cpu's, and no memory is pinned.

    A copy on the CPU is done when the call returns, as torch.cpu.Event says.
    """
    import torch

    empty_like = torch.empty_like

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return empty_like(*args, **kwargs)

    changes = (
        (torch.cuda, "Stream", torch.cpu.Stream),
        (torch.cuda, "Event", torch.cpu.Event),
        (torch.cuda, "stream", torch.cpu.stream),
        (torch, "empty_like", unpinned),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


PATCH = Patch(
    id="cpu-copy-stream",
    summary="stock extraction on the CPU dies at the first sample",
    why=(
        "On vLLM's CPU builds the first finished request stops the engine with 'Found "
        "no NVIDIA driver': the connector copies the states over a CUDA stream into "
        "pinned memory, whatever the platform."
    ),
    see=(
        "The first sample stops the engine with an error about CUDA, NVIDIA or "
        "_StreamPlaceholder, raised in the connector. With the patch its file is "
        "there."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.22.0,<=0.32.0"),
    targets=(
        Target(
            name=f"{STOCK_CLASS}.save_kv_layer",
            wrapper=save_kv_layer,
            forms=(
                Fingerprint(
                    parameters=("self", "layer_name"),
                    contains=("torch.cuda.stream(copy_stream)", "self.cache_layers"),
                ),
                Fingerprint(parameters=("self", "layer_name"), lacks=("torch.cuda",)),
            ),
        ),
        Target(
            name=f"{STOCK_CLASS}.get_finished",
            wrapper=get_finished,
            forms=(
                Fingerprint(
                    parameters=("self", "finished_req_ids"),
                    contains=("self._req_copy_events",),
                ),
            ),
        ),
    ),
    processes=("worker",),
    remove_when=OPEN,
)
