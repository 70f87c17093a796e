"""Follows one dummy forward: which noise went out of a layer, who took it, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from specshim.tap.layers import Forward
from specshim.tap.norms import normalises, outcome, takes_second
from specshim.tap.proof import Proof, Reading
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

# Noise that comes through unchanged, or as the sum of two in bfloat16.
MATCH = 0.02


_NONE = -1  # no element of an output


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


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
    storages: dict[int, int | None] = field(default_factory=dict)  # -> element
    read: dict[int | None, str] = field(default_factory=dict)  # element -> first reader


@dataclass
class _NormCall:
    """A norm that ran after the last layer: what it took, and what it gave."""

    module: torch.nn.Module
    reading: Reading
    output: torch.Tensor


class Watch:
    """Follows one dummy forward: which noise went out, who took it, and how."""

    def __init__(
        self,
        tokens: int,
        hidden: int,
        layers: int,
        keep: Sequence[int],
        first: int = 0,
    ) -> None:
        self.first = first  # of this pipeline stage
        self.tokens = tokens
        self.hidden = hidden
        self.last = layers - 1
        self.keep = set(keep)
        self.norms: list[_NormCall] = []  # after the last layer
        self.ended = False
        self.left_out: dict[int, tuple[int, torch.Tensor]] = {}  # by storage
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
                with self._ours():
                    call = Call(args, kwargs)
                    if index == self.first:
                        call = call.with_values(self._noise(call.values))
                        self._expect(index - 1, call.values)
                    self._enter(call)
                output = forward(*call.args, **call.kwargs)
                with self._ours():
                    self._settle_weak()
                    self.settle()
                    self.ended = index == self.last
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
        for part in parts:
            self.pending.storages[_storage(part.of(output))] = part.element

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
                (p for p, t in taken if relative_error(t, value) < MATCH), None
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
        self._leave_out(pending, stream)
        if pending.call is not None and stream in pending.places:
            call = pending.call
            self.proof.inputs[pending.index + 1] = Reading(
                len(call.args), tuple(call.kwargs), pending.places[stream]
            )
        self.pending = None

    def _leave_out(self, pending: _Pending, stream: Stream) -> None:
        """Note the elements that the reading leaves out; nobody may read them."""
        used = {part.element for part in (stream.main, stream.residual) if part}
        others = [part for part in pending.parts if part.element not in used]
        if pending.index >= 0 and others:
            self.proof.partial.add(pending.index)
            for part in others:
                noise = part.of(pending.output)  # kept, so that its place stays its own
                self.left_out[_storage(noise)] = pending.index, noise
                if part.element in pending.read:
                    self._not_left_out(pending.index, pending.read[part.element])

    def _not_left_out(self, index: int, reader: str) -> None:
        self.proof.streams.pop(index, None)
        self.proof.inputs.pop(index + 1, None)
        self.proof.failures[index] = (
            f"the model goes on with one of its tensors, and yet {reader} reads the "
            "other"
        )

    def was_read(self, tensor: torch.Tensor, name: str) -> None:
        """An operation takes ``tensor``: is it noise that may be left out?"""
        if self.judging or tensor.device.type == "meta":
            return
        if self.pending is not None:
            element = self.pending.storages.get(_storage(tensor), _NONE)
            if element != _NONE:
                self.pending.read.setdefault(element, name)
        found = self.left_out.pop(_storage(tensor), None)
        if found is not None:
            self._not_left_out(found[0], name)

    def settle(self) -> None:
        """The consumer has run; whatever it did not show is a failure."""
        if self.pending is not None:
            self.proof.failures[self.pending.index] = (
                "what the model goes on with is neither of its parts nor a sum of two: "
                + describe(self.pending.output)
            )
            self.pending = None

    def end(self, returned: Any) -> None:
        """The model has returned; which norm's output is it?"""
        self._settle_weak()
        self.settle()
        wanted = [
            value.reshape(-1, self.hidden)
            for value in (returned if isinstance(returned, tuple) else (returned,))
            if is_states(value, self.tokens, self.hidden)
        ]
        calls = [
            norm
            for norm in self.norms
            if any(relative_error(norm.output, value) < MATCH for value in wanted)
        ]
        if calls and sum(n.module is calls[-1].module for n in self.norms) == 1:
            self.proof.final_norm = calls[-1].module, calls[-1].reading
        self.norms.clear()

    def _settle_weak(self) -> None:
        """A part taken first by what is no norm is the stream if no other is read.

        Whether one is read, a second forward watches (:meth:`was_read`); several
        streams in one tensor cannot be told apart by that.
        """
        pending = self.pending
        if pending is None or pending.weak is None:
            return
        element = pending.weak.main.element
        if sum(part.element == element for part in pending.parts) == 1:
            self._accept(pending.weak)

    def _parts(self, output: Any) -> list[Part]:
        return parts_of(output, self.tokens, self.hidden)

    def on_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Forward pre-hook of every module: does this call show the stream?"""
        if self.judging or (self.pending is None and not self.ended):
            return
        taken: dict[int, torch.Tensor] = {
            id(value): value  # Cohere hands its norm the same tensor twice
            for value in (*args, *kwargs.values())
            if is_states(value, self.tokens, self.hidden)
            and (value.dim() == 2 or value.shape[0] == 1)
        }
        with self._ours():
            stream = None
            call, values = Call(args, kwargs), list(taken.values())
            if self.ended:
                self._note_norm(module, call, values)
            if self.pending is None:
                return
            if len(values) == 1:
                stream = self._single(module, call, values[0])
            elif len(values) == 2:
                stream = self._pair(module, call, *values)
            if stream is not None:
                self._accept(stream)

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """What runs inside is the watch's own doing, not the model's."""
        self.judging = True
        try:
            yield
        finally:
            self.judging = False

    def _note_norm(
        self, module: torch.nn.Module, call: Call, values: list[torch.Tensor]
    ) -> None:
        """Keep what a norm after the last layer takes and gives."""
        if len(values) not in (1, 2) or any(True for _ in module.children()):
            return
        if not normalises(module, call, values, self._noise):
            return
        first, second = values[0], values[1:]
        adds = False
        if second:
            added = takes_second(module, call, first, second[0], self._noise)
            if added is None:
                return
            adds = added
        output = outcome(module, call, {})
        if output is not None:
            parts = [
                next(
                    part
                    for part in self._parts(call.values)
                    if part.element is not None and call.values[part.element] is value
                )
                for value in values
            ]
            stream = Stream(parts[0], parts[1] if adds else None)
            reading = Reading(len(call.args), tuple(call.kwargs), stream)
            self.norms.append(
                _NormCall(module, reading, output.reshape(-1, self.hidden))
            )

    def _match(self, value: torch.Tensor) -> Stream | None:
        assert self.pending is not None
        for stream, expected in self.pending.candidates:
            if relative_error(value, expected) < MATCH:
                return stream
        return None

    def _single(
        self, module: torch.nn.Module, call: Call, value: torch.Tensor
    ) -> Stream | None:
        pending = self.pending
        assert pending is not None
        stream = self._match(value.reshape(-1, self.hidden))
        if stream is None or stream.residual is not None or len(pending.parts) == 1:
            return stream
        # One part of several: only a norm tells that the others are left out for good.
        if normalises(module, call, [value], self._noise):
            return stream
        pending.weak = pending.weak or stream
        return None

    def _pair(
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
        if any(True for _ in module.children()):
            return None
        added = takes_second(module, call, first, second, self._noise)
        if added is None:
            return None
        return Stream(a.main, b.main) if added else a

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
