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
from dataclasses import dataclass, field
from typing import Any

import torch

from specshim.tap.layers import DecoderLayers, Forward, TapRefused, replaced_forward
from specshim.tap.streams import (
    Part,
    Stream,
    candidates,
    describe,
    is_states,
    parts_of,
    randomized,
    relative_error,
)

# Between the right reading and a wrong one lies a relative error near 1; rounding in
# bfloat16, also of the shifted sums below, stays near 0.01.
_TOLERANCE = 0.1


@dataclass
class Proof:
    """What the dummy forward showed; index -1 stands for the embedding output.

    The reading of the embedding is one of the first layer's arguments: positional ones
    first, then those named in ``keywords``.
    """

    positional: int = 0
    keywords: tuple[str, ...] = ()
    streams: dict[int, Stream] = field(default_factory=dict)  # layer index -> reading
    outputs: dict[int, Any] = field(default_factory=dict)  # the real output, not noise
    failures: dict[int, str] = field(default_factory=dict)  # layer index -> why not


@dataclass
class _Pending:
    """A producer whose noise has not been recognised yet; -1 is the embedding."""

    index: int
    output: Any
    parts: list[Part]
    candidates: list[tuple[Stream, torch.Tensor]]


class _Watch:
    """Follows one dummy forward: which noise went out, who took it, and how."""

    def __init__(self, tokens: int, hidden: int, keep: Sequence[int]) -> None:
        self.tokens = tokens
        self.hidden = hidden
        self.keep = set(keep)
        self.proof = Proof()
        self.generator = torch.Generator().manual_seed(0)
        self.pending: _Pending | None = None
        self.judging = False

    def expect(self, index: int, output: Any) -> None:
        """Noise of producer ``index`` is about to be consumed."""
        parts = parts_of(output, self.tokens, self.hidden)
        readings = candidates(parts)
        values = [
            (stream, stream.value(output).to(torch.float32, copy=True))
            for stream in readings
        ]
        self.pending = _Pending(index, output, parts, values)

    def settle(self) -> None:
        """The consumer has run; whatever it did not show is a failure."""
        if self.pending is not None:
            self.proof.failures[self.pending.index] = (
                "what the model goes on with is neither of its parts nor a sum of two: "
                + describe(self.pending.output)
            )
            self.pending = None

    def accept(self, stream: Stream) -> None:
        assert self.pending is not None
        self.proof.streams[self.pending.index] = stream
        self.pending = None

    def on_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Forward pre-hook of every module: does this call show the stream?"""
        if self.pending is None or self.judging:
            return
        taken = [
            value
            for value in (*args, *kwargs.values())
            if is_states(value, self.tokens, self.hidden)
            and (value.dim() == 2 or value.shape[0] == 1)
        ]
        self.judging = True
        try:
            stream = None
            if len(taken) == 1:
                stream = self._single(module, taken[0].reshape(-1, self.hidden))
            elif len(taken) == 2 and _norm_like(module):
                stream = self._norm(module, args, kwargs, *taken)
            if stream is not None:
                self.accept(stream)
        finally:
            self.judging = False

    def _match(self, value: torch.Tensor) -> Stream | None:
        assert self.pending is not None
        for stream, expected in self.pending.candidates:
            if relative_error(value, expected) < _TOLERANCE:
                return stream
        return None

    def _single(self, module: torch.nn.Module, value: torch.Tensor) -> Stream | None:
        assert self.pending is not None
        stream = self._match(value)
        if (
            stream is None
            or stream.residual is not None
            or len(self.pending.parts) == 1
        ):
            return stream
        # One part of several: only a norm tells that the others are left out for good.
        return stream if _norm_like(module) else None

    def _norm(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        first: torch.Tensor,
        second: torch.Tensor,
    ) -> Stream | None:
        """A norm that takes two tensors: does it add the second or ignore it?"""
        a, b = self._match(first), self._match(second)
        if a is None or b is None or a.residual or b.residual or a == b:
            return None

        def normed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            def swap(value: Any) -> Any:
                if value is first:
                    return x.clone()
                return y.clone() if value is second else value

            out = module.forward(
                *(swap(value) for value in args),
                **{name: swap(value) for name, value in kwargs.items()},
            )
            return out[0] if isinstance(out, (tuple, list)) else out

        shift, other = (
            randomized(first, self.tokens, self.hidden, self.generator)
            for _ in range(2)
        )
        plain = normed(first, second)
        if relative_error(normed(first, other), plain) < _TOLERANCE:
            return a
        if relative_error(normed(first + shift, second - shift), plain) < _TOLERANCE:
            return Stream(a.main, b.main)
        return None

    def layer(self, index: int) -> Callable[[Forward], Forward]:
        """Wrapper for the forward of decoder layer ``index``."""

        def wrap(forward: Forward) -> Forward:
            def watched(*args: Any, **kwargs: Any) -> Any:
                if index == 0:
                    args, kwargs = self._embedding(args, kwargs)
                output = forward(*args, **kwargs)
                self.settle()
                return self._replace(index, output)

            return watched

        return wrap

    def _embedding(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        noise = randomized(
            (*args, *kwargs.values()), self.tokens, self.hidden, self.generator
        )
        self.proof.positional, self.proof.keywords = len(args), tuple(kwargs)
        self.expect(-1, noise)
        return noise[: len(args)], dict(zip(kwargs, noise[len(args) :], strict=True))

    def _replace(self, index: int, output: Any) -> Any:
        if index in self.keep:
            self.proof.outputs[index] = output
        parts = parts_of(output, self.tokens, self.hidden)
        elements = {part.element for part in parts}
        if not parts or len(elements) > 2:
            self.proof.failures[index] = (
                f"it returns {describe(output)}, where one or two tensors of "
                f"[{self.tokens} tokens, {self.hidden}] were expected"
            )
            return output
        noise = randomized(output, self.tokens, self.hidden, self.generator)
        self.expect(index, noise)
        return noise


def _norm_like(module: torch.nn.Module) -> bool:
    """A leaf with vector weights at most: what a normalisation layer looks like."""
    return not any(True for _ in module.children()) and all(
        parameter.dim() <= 1 for parameter in module.parameters()
    )


def prove(
    model: torch.nn.Module,
    layers: DecoderLayers,
    layer_ids: Sequence[int],
    hidden: int,
    tokens: int,
    run: Callable[[], object],
) -> Proof:
    """Show, for each id in ``layer_ids``, how to read the stream entering that layer.

    Args:
        model: the loaded model.
        layers: its decoder layers.
        layer_ids: ids 0..n; id k > 0 is read off the output of layer k-1.
        hidden: hidden size.
        tokens: rows of the forward that ``run`` makes.
        run: runs one eager dummy forward of ``model``.

    Raises:
        TapRefused: an id could not be shown; the message names the layer and why.
    """
    watch = _Watch(tokens, hidden, [i - 1 for i in layer_ids if i > 0])
    members = set(layers.modules)
    with ExitStack() as stack:
        for index, layer in enumerate(layers.modules):
            stack.enter_context(replaced_forward(layer, watch.layer(index)))
        for module in model.modules():
            if module not in members:
                handle = module.register_forward_pre_hook(
                    watch.on_call, with_kwargs=True, prepend=True
                )
                stack.callback(handle.remove)
        run()
    watch.settle()
    proof = watch.proof
    for layer_id in layer_ids:
        index = layer_id - 1
        if index not in proof.streams:
            why = proof.failures.get(index, "the dummy forward did not show its use")
            where = (
                f"the input of {layers.name}[0]"
                if index < 0
                else f"{layers.name}[{index}] ({type(layers.modules[index]).__name__})"
            )
            raise TapRefused(
                f"layer id {layer_id} of {type(model).__name__} cannot be tapped: at "
                f"{where}, {why}; use --specshim-route cache, and please report this "
                "model"
            )
    return proof
