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
    Call,
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
    """

    inputs: dict[int, Reading] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass
class _Pending:
    """A producer whose noise has not been recognised yet; -1 is the embedding."""

    index: int
    output: Any
    parts: list[Part]
    candidates: list[tuple[Stream, torch.Tensor]]
    places: dict[Stream, Stream] = field(default_factory=dict)  # into the arguments
    call: Call | None = None  # the next layer's call, before it changed anything
    weak: Stream | None = None  # taken first, but by something that is no norm


class _Watch:
    """Follows one dummy forward: which noise went out, who took it, and how."""

    def __init__(
        self, tokens: int, hidden: int, keep: Sequence[int], first: int = 0
    ) -> None:
        self.first = first
        self.tokens = tokens
        self.hidden = hidden
        self.keep = set(keep)
        self.proof = Proof()
        self.generator = torch.Generator().manual_seed(0)
        self.pending: _Pending | None = None
        self.judging = False

    def layer(self, index: int) -> Callable[[Forward], Forward]:
        """Wrapper for the forward of decoder layer ``index``."""

        def wrap(forward: Forward) -> Forward:
            def watched(*args: Any, **kwargs: Any) -> Any:
                if self.judging:
                    return forward(*args, **kwargs)
                call = Call(args, kwargs)
                if index == self.first:
                    call = call.with_values(self._noise(call.values))
                    self._expect(index - 1, call.values)
                self._enter(call)
                output = forward(*call.args, **call.kwargs)
                self._settle_weak(forward)
                self.settle()
                return self._replace(index, output)

            return watched

        return wrap

    def _noise(self, value: Any) -> Any:
        return randomized(value, self.tokens, self.hidden, self.generator)

    def _expect(self, index: int, output: Any) -> None:
        """Noise of producer ``index`` is about to be consumed."""
        parts = parts_of(output, self.tokens, self.hidden)
        values = [
            (stream, stream.value(output).to(torch.float32, copy=True))
            for stream in candidates(parts)
        ]
        self.pending = _Pending(index, output, parts, values)

    def _enter(self, call: Call) -> None:
        """Find the pending noise among the arguments of the layer that comes next."""
        pending = self.pending
        if pending is None:
            return
        pending.call = call.cloned()
        taken = [
            (part, part.of(call.values))
            for part in parts_of(call.values, self.tokens, self.hidden)
        ]
        for stream, value in pending.candidates:
            place = next(
                (p for p, t in taken if relative_error(t, value) < _TOLERANCE), None
            )
            if place is not None:
                pending.places[stream] = Stream(place)
            elif stream.residual is not None:
                halves = [
                    pending.places.get(Stream(part))
                    for part in (stream.main, stream.residual)
                ]
                if halves[0] is not None and halves[1] is not None:
                    pending.places[stream] = Stream(halves[0].main, halves[1].main)
        if len(pending.parts) == 1 and Stream(pending.parts[0]) in pending.places:
            self._accept(Stream(pending.parts[0]))  # there is no other way to read it

    def _accept(self, stream: Stream) -> None:
        pending = self.pending
        assert pending is not None
        self.proof.streams[pending.index] = stream
        if pending.call is not None and stream in pending.places:
            call = pending.call
            self.proof.inputs[pending.index + 1] = Reading(
                len(call.args), tuple(call.kwargs), pending.places[stream]
            )
        self.pending = None

    def settle(self) -> None:
        """The consumer has run; whatever it did not show is a failure."""
        if self.pending is not None:
            self.proof.failures[self.pending.index] = (
                "what the model goes on with is neither of its parts nor a sum of two: "
                + describe(self.pending.output)
            )
            self.pending = None

    def _settle_weak(self, forward: Forward) -> None:
        """A part taken by no norm is the stream if the layer ignores all others."""
        pending = self.pending
        if pending is None or pending.weak is None or pending.call is None:
            return
        others = [
            pending.places[stream].main
            for stream, _ in pending.candidates
            if stream.residual is None
            and stream != pending.weak
            and stream in pending.places
        ]
        self.judging = True
        try:
            runs = []
            for _ in range(2):
                call = pending.call.cloned()
                for part in others:
                    value = part.of(call.values)
                    value.copy_(self._noise(value))
                output = forward(*call.args, **call.kwargs)
                runs.append([p.of(output) for p in self._parts(output)])
        finally:
            self.judging = False
        if runs[0] and all(
            relative_error(a, b) < _TOLERANCE for a, b in zip(*runs, strict=True)
        ):
            self._accept(pending.weak)

    def _parts(self, output: Any) -> list[Part]:
        return parts_of(output, self.tokens, self.hidden)

    def on_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Forward pre-hook of every module: does this call show the stream?"""
        if self.pending is None or self.judging:
            return
        taken: dict[int, torch.Tensor] = {
            id(value): value  # Cohere hands its norm the same tensor twice
            for value in (*args, *kwargs.values())
            if is_states(value, self.tokens, self.hidden)
            and (value.dim() == 2 or value.shape[0] == 1)
        }
        self.judging = True
        try:
            stream = None
            if len(taken) == 1:
                (value,) = taken.values()
                stream = self._single(module, value.reshape(-1, self.hidden))
            elif len(taken) == 2 and _norm_like(module):
                stream = self._norm(module, Call(args, kwargs), *taken.values())
            if stream is not None:
                self._accept(stream)
        finally:
            self.judging = False

    def _match(self, value: torch.Tensor) -> Stream | None:
        assert self.pending is not None
        for stream, expected in self.pending.candidates:
            if relative_error(value, expected) < _TOLERANCE:
                return stream
        return None

    def _single(self, module: torch.nn.Module, value: torch.Tensor) -> Stream | None:
        pending = self.pending
        assert pending is not None
        stream = self._match(value)
        if stream is None or stream.residual is not None or len(pending.parts) == 1:
            return stream
        # One part of several: only a norm tells that the others are left out for good.
        if _norm_like(module):
            return stream
        pending.weak = pending.weak or stream
        return None

    def _norm(
        self,
        module: torch.nn.Module,
        call: Call,
        first: torch.Tensor,
        second: torch.Tensor,
    ) -> Stream | None:
        """A norm that takes two tensors: does it add the second or ignore it?"""
        a, b = self._match(first), self._match(second)
        if a is None or b is None or a.residual or b.residual or a == b:
            return None

        def normed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            swapped = {id(first): x, id(second): y}
            values = [
                swapped[id(value)].clone() if id(value) in swapped else value
                for value in call.values
            ]
            changed = call.with_values(values)
            out = module.forward(*changed.args, **changed.kwargs)
            return out[0] if isinstance(out, (tuple, list)) else out

        shift, other = self._noise(first), self._noise(first)
        plain = normed(first, second)
        if relative_error(normed(first, other), plain) < _TOLERANCE:
            return a
        if relative_error(normed(first + shift, second - shift), plain) < _TOLERANCE:
            return Stream(a.main, b.main)
        return None

    def _replace(self, index: int, output: Any) -> Any:
        parts = self._parts(output)
        if index in self.keep:
            self.proof.outputs[index] = Call((output,), {}).cloned().args[0]
        if not parts or len({part.element for part in parts}) > 2:
            self.proof.failures[index] = (
                f"it returns {describe(output)}, where one or two tensors of "
                f"[{self.tokens} tokens, {self.hidden}] were expected"
            )
            return output
        noise = self._noise(output)
        self._expect(index, noise)
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
    watch = _Watch(tokens, hidden, [i - 1 for i in layer_ids if i > first], first)
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
