"""Is a module a norm, and what does it do with a second tensor? Shown by running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specshim.tap.streams import Call, relative_error

# Between the right reading and a wrong one lies a relative error near 1; rounding in
# bfloat16, also of the shifted sums below, stays near 0.01.
TOLERANCE = 0.1

Noise = Callable[[torch.Tensor], torch.Tensor]


def outcome(
    module: torch.nn.Module, call: Call, replaced: dict[int, torch.Tensor]
) -> torch.Tensor | None:
    """The first tensor that ``module`` gives when values of its call are replaced."""
    values = [
        replaced.get(id(value), value).clone()
        if isinstance(value, torch.Tensor)
        else value
        for value in call.values
    ]
    changed = call.with_values(values)
    out: Any = module.forward(*changed.args, **changed.kwargs)
    out = out[0] if isinstance(out, (tuple, list)) and out else out
    return out if isinstance(out, torch.Tensor) else None


def normalises(
    module: torch.nn.Module, call: Call, taken: list[torch.Tensor], noise: Noise
) -> bool:
    """Whether a leaf's output keeps its scale when the inputs in ``taken`` grow.

    The look of its parameters tells nothing: vLLM's CPU build packs the matrices of
    linear layers and leaves empty vectors in their place.
    """
    if any(True for _ in module.children()):
        return False
    plain = outcome(module, call, {id(value): value for value in taken})
    grown = outcome(module, call, {id(value): value * 4 for value in taken})
    other = outcome(module, call, {id(value): noise(value) for value in taken})
    if plain is None or grown is None or other is None:
        return False
    return (
        relative_error(grown, plain) < TOLERANCE
        and relative_error(other, plain) > TOLERANCE
    )


def takes_second(
    module: torch.nn.Module,
    call: Call,
    first: torch.Tensor,
    second: torch.Tensor,
    noise: Noise,
) -> bool | None:
    """Does a norm of two tensors add the second (True) or ignore it (False)?

    None where neither can be shown.
    """

    def normed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        return outcome(module, call, {id(first): x, id(second): y})

    shift = noise(first)
    plain, other = normed(first, second), normed(first, noise(first))
    shifted = normed(first + shift, second - shift)
    if plain is None or other is None or shifted is None:
        return None
    if relative_error(other, plain) < TOLERANCE:
        return False
    return True if relative_error(shifted, plain) < TOLERANCE else None
