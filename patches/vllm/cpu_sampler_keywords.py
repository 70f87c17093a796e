"""On the CPU the sampler passes its kernels arguments that they do not take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim.patching import Fingerprint, Patch, Target


def kernel_of(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The kernel for a launch grid, made to take what the sampler passes."""
    return partial(call, wrapped(*args, **kwargs))


def call(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``kernel`` without the arguments that it has no parameter for.

    What fits is passed on as it is. What does not fit concerns synthetic acceptance
    rates, which extraction never uses, and the precision of the noise, which is in
    the tensor itself; the kernel reads float32.

    Raises:
        NotImplementedError: synthetic acceptance was asked for.
    """
    import torch

    required, known = _parameters(kernel)
    if kwargs.keys() <= known:
        return kernel(*args, **kwargs)
    if kwargs.get("SYNTHETIC_MODE"):
        raise NotImplementedError(
            "This vLLM has no synthetic acceptance rates on the CPU; leave them out."
        )
    # All that has a default is either passed by name or is a tile size.
    tensors = [
        value.float() if getattr(value, "dtype", None) is torch.float64 else value
        for value in args[:required]
    ]
    return kernel(*tensors, **{k: v for k, v in kwargs.items() if k in known})


@cache
def _parameters(kernel: Callable[..., Any]) -> tuple[int, frozenset[str]]:
    """How many parameters have no default, and the names of all."""
    parameters = inspect.signature(kernel).parameters
    required = [p for p in parameters.values() if p.default is p.empty]
    return len(required), frozenset(parameters)


PATCH = Patch(
    id="cpu-sampler-keywords",
    summary="stock extraction on the CPU fails in the sampler",
    why=(
        "On vLLM's CPU builds a server that extracts stops with \"got an unexpected "
        "keyword argument 'SYNTHETIC_MODE'\" (0.20) or 'USE_FP64_GUMBEL' (0.23, 0.24): "
        "the kernels for the CPU had not been given the parameters that the sampler "
        "passes. In 0.21 and 0.22 they fit, and every call goes through as it is."
    ),
    see=(
        "The first step stops the engine with a TypeError that names SYNTHETIC_MODE "
        "or USE_FP64_GUMBEL. With the patch it is answered."
    ),
    upstream=(),
    affects=SpecifierSet(">=0.20.0,<0.25.0"),
    targets=(
        Target(
            name="vllm.utils.cpu_triton_utils._FuncWrapper.__getitem__",
            wrapper=kernel_of,
            forms=(Fingerprint(parameters=("self",), contains=("return self.func",)),),
        ),
    ),
    processes=("worker",),
    remove_when="vllm>=0.25.0",
)
