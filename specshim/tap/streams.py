"""What a decoder layer returns, and which part of it is the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """The arguments of one forward call, also as one flat tuple of values."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def values(self) -> tuple[Any, ...]:
        """Positional arguments, then keyword arguments in their order."""
        return (*self.args, *self.kwargs.values())

    def with_values(self, values: Sequence[Any]) -> Call:
        """The same call with other values, given as :attr:`values` are."""
        count = len(self.args)
        named = dict(zip(self.kwargs, values[count:], strict=True))
        return Call(tuple(values[:count]), named)

    def cloned(self) -> Call:
        """The same call with tensors of their own, also inside tuples and lists."""

        def clone(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.clone()
            if isinstance(value, (tuple, list)):
                values = [clone(item) for item in value]
                named = hasattr(value, "_fields")
                return type(value)(*values) if named else type(value)(values)
            return value

        return self.with_values([clone(value) for value in self.values])


@dataclass(frozen=True)
class Part:
    """One [tokens, hidden] tensor inside a layer's output.

    ``element`` is its place in the returned tuple (None: the output is the tensor
    itself). ``plane`` is the index into a leading axis of a 3-D tensor, such as the
    active stream of Gemma-3n's [4, tokens, hidden] or the only one of [1, tokens,
    hidden] (vLLM's transformers backend); None for a plain 2-D tensor.
    """

    element: int | None
    plane: int | None

    def of(self, output: Any) -> torch.Tensor:
        """This part of ``output``, as a [tokens, hidden] view."""
        tensor = output if self.element is None else output[self.element]
        return tensor if self.plane is None else tensor[self.plane]

    def __str__(self) -> str:
        place = "output" if self.element is None else f"output[{self.element}]"
        return place if self.plane is None else f"{place} (plane {self.plane})"


@dataclass(frozen=True)
class Stream:
    """How to read the residual stream off an output: one part, or the sum of two."""

    main: Part
    residual: Part | None = None

    def parts(self, output: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The tensor(s) to record; a residual is still to be added."""
        main = self.main.of(output)
        return main, None if self.residual is None else self.residual.of(output)

    def value(self, output: Any) -> torch.Tensor:
        """The stream itself, [tokens, hidden]."""
        main, residual = self.parts(output)
        return main if residual is None else main + residual

    def __str__(self) -> str:
        return str(self.main) + ("" if self.residual is None else f" + {self.residual}")


def _elements(output: Any) -> Iterator[tuple[int | None, Any]]:
    if isinstance(output, (tuple, list)):
        yield from enumerate(output)
    else:
        yield None, output


def is_states(value: Any, tokens: int, hidden: int) -> bool:
    """Whether ``value`` holds one floating-point row of ``hidden`` per token."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dim() in (2, 3)
        and tuple(value.shape[-2:]) == (tokens, hidden)
    )


def parts_of(output: Any, tokens: int, hidden: int) -> list[Part]:
    """All [tokens, hidden] parts of a layer's output, in order."""
    found = []
    for element, tensor in _elements(output):
        if is_states(tensor, tokens, hidden):
            planes = [None] if tensor.dim() == 2 else range(tensor.shape[0])
            found += [Part(element, plane) for plane in planes]
    return found


def describe(output: Any) -> str:
    """Shapes of an output, for a message: ``(h[17, 64], h[17, 64])``."""

    def one(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return type(value).__name__

    if isinstance(output, (tuple, list)):
        return "(" + ", ".join(one(value) for value in output) + ")"
    return one(output)


def candidates(parts: list[Part]) -> list[Stream]:
    """Every reading of the output that could be the stream: each part, each pair's sum.

    Two planes of one tensor are never summed: they are separate streams.
    """
    singles = [Stream(part) for part in parts]
    pairs = [
        Stream(a, b)
        for i, a in enumerate(parts)
        for b in parts[i + 1 :]
        if a.element != b.element
    ]
    return singles + pairs


def randomized(
    output: Any, tokens: int, hidden: int, generator: torch.Generator
) -> Any:
    """``output`` with every states tensor replaced by normal noise of the same kind."""

    def noise(value: Any) -> Any:
        if not is_states(value, tokens, hidden):
            return value
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float32)
        return drawn.to(device=value.device, dtype=value.dtype)

    if isinstance(output, (tuple, list)):
        values = [noise(value) for value in output]
        fields = hasattr(output, "_fields")  # a named tuple takes its values one by one
        return type(output)(*values) if fields else type(output)(values)
    return noise(output)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 distance; infinite where either holds no finite value."""
    a, b = actual.detach().float(), expected.detach().float()
    if a.shape != b.shape or not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    return float((a - b).norm() / b.norm().clamp_min(1e-12))
