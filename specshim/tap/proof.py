"""What the start-up proof finds out about a model's layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from specshim.tap.streams import Stream


@dataclass(frozen=True)
class Reading:
    """How to read the stream entering a layer off that layer's own arguments."""

    positional: int
    keywords: tuple[str, ...]
    stream: Stream

    def parts(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The tensor(s) to record; a second one is still to be added."""
        taken = (*args[: self.positional], *[kwargs[name] for name in self.keywords])
        return self.stream.parts(taken)

    def __str__(self) -> str:
        return str(self.stream).replace("output", "argument")


@dataclass
class Proof:
    """What the dummy forward showed.

    Attributes:
        inputs: layer index k -> how layer k's arguments hold the stream entering it.
        streams: layer index k -> how layer k's output holds the stream; -1 stands for
            the embedding output, and the one before a pipeline stage's first layer
            for what the stage before sends.
        outputs: the real outputs, not the noise, of the layers that were asked for.
        failures: layer index -> why nothing was shown.
        partial: layer indices whose reading leaves out one of the returned tensors.
        final_norm: the norm whose output the model returns, and how its arguments
            hold the stream; None where no norm was shown to be it.
    """

    inputs: dict[int, Reading] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    partial: set[int] = field(default_factory=set)
    final_norm: tuple[torch.nn.Module, Reading] | None = None
