"""Name what wrong states are: by comparing them with what else they could be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from specshim.reference import PromptStates
from specshim.verification.collect import Sample
from specshim.verification.errors import indices, row_cosines, row_errors

if TYPE_CHECKING:
    from torch import Tensor

_MAX_SHIFT = 8
_CLEARLY = 0.5  # an alternative must at least halve the error
_SEARCHED_ROWS = 64


@dataclass(frozen=True)
class Finding:
    """One thing that is off in one sample: ``text`` says what the states are.

    ``kind`` is "token ids", "shape", "zero rows", "not finite", "broadcast",
    "other layer", "post-norm", "shifted", "other request", "mixed rows",
    "residual added twice", "scaled" or "unexplained". ``wrong`` is False for a
    difference that is allowed as far as its number goes.
    """

    kind: str
    text: str
    sample: int
    layer_id: int | None = None
    slot: int | None = None
    rows: tuple[int, ...] = ()
    wrong: bool = True
    other: int | None = None  # the other layer, request or number of rows


@dataclass(frozen=True)
class _Alternative:
    """What the received rows could be instead; NaN where it has no such row."""

    kind: str
    text: str
    expected: Callable[[], Tensor]
    other: int | None = None


def diagnose(
    samples: Sequence[Sample],
    layer_ids: Sequence[int],
    exact: Sequence[PromptStates],
    row_limits: Sequence[float],
    suspects: Sequence[int] = (),
) -> list[Finding]:
    """Findings for every row whose error is above its layer's limit.

    Args:
        samples: whose shapes fit their references.
        exact: one reference per prompt that was sent, found by ``Sample.index``.
        row_limits: one per slot.
        suspects: slots of which every row is to be explained, whatever its error.
    """
    findings: list[Finding] = []
    for sample in samples:
        same = list(_broadcast(sample, layer_ids, exact[sample.index]))
        findings += same
        named = {finding.slot for finding in same}
        for slot, layer_id in enumerate(layer_ids):
            if slot in named:
                continue
            limit = -1.0 if slot in suspects else row_limits[slot]
            findings += _slot(
                sample, slot, layer_id, exact, limit, match=row_limits[slot]
            )
    return findings


def _broadcast(
    sample: Sample, layer_ids: Sequence[int], exact: PromptStates
) -> Iterator[Finding]:
    """Different layers that hold the very same states."""
    import torch

    groups: dict[int, list[int]] = {}
    for slot in range(len(layer_ids)):
        states = sample.states[:, slot]
        if not states.any():
            continue
        for first, slots in groups.items():
            if torch.equal(sample.states[:, first], states):
                slots.append(slot)
                break
        else:
            groups[slot] = [slot]
    for first, slots in groups.items():
        ids = sorted({layer_ids[slot] for slot in slots})
        wanted = exact.stream[ids]
        if len(ids) < 2 or all(torch.equal(wanted[0], layer) for layer in wanted):
            continue
        received = sample.states[:, first].float()
        medians = [row_errors(received, w).median().item() for w in exact.stream]
        nearest = min(range(len(medians)), key=medians.__getitem__)
        text = (
            f"ids {', '.join(map(str, ids))} hold the same states, those of id "
            f"{nearest}: one layer was copied into several places"
        )
        for slot in slots:
            yield Finding(
                "broadcast", text, sample.index, layer_ids[slot], slot, other=nearest
            )


def _slot(
    sample: Sample,
    slot: int,
    layer_id: int,
    exact: Sequence[PromptStates],
    limit: float,
    match: float,
) -> Iterator[Finding]:
    """Explain the rows of one layer beyond ``limit``, best explanation first."""
    received = sample.states[:, slot].float()
    wanted = exact[sample.index].stream[layer_id]
    own = row_errors(received, wanted)
    # zero and non-finite rows are findings of their own
    open_rows = (own > limit) & received.isfinite().all(-1) & (received != 0).any(-1)
    alternatives = list(_alternatives(sample.index, layer_id, exact))
    while open_rows.any():
        best, best_rows = None, open_rows & False
        for alternative in alternatives:
            error = row_errors(received, alternative.expected())
            rows = open_rows & (error <= match) & (error < _CLEARLY * own)
            if rows.sum() > best_rows.sum():
                best, best_rows = alternative, rows
        if best is None:
            break
        yield Finding(
            best.kind,
            best.text,
            sample.index,
            layer_id,
            slot,
            indices(best_rows),
            other=best.other,
        )
        open_rows = open_rows & ~best_rows
    if limit < 0:  # rows of a suspect slot that are near enough need no explanation
        open_rows = open_rows & (own > match)
    if open_rows.any():
        yield from _leftover(
            sample, slot, layer_id, exact, received, wanted, open_rows, match
        )


def _alternatives(
    index: int, layer_id: int, exact: Sequence[PromptStates]
) -> Iterator[_Alternative]:
    own = exact[index]
    layers, rows, _ = own.stream.shape
    right = own.stream[layer_id]
    for other in range(layers):
        if other != layer_id:
            text = f"holds the states of id {other}"
            yield _Alternative("other layer", text, own.stream[other].clone, other)
    if own.post_norm is not None:
        text = "holds the states after the final norm instead of before it"
        yield _Alternative("post-norm", text, own.post_norm.clone)
    for shift in sorted(range(-_MAX_SHIFT, _MAX_SHIFT + 1), key=abs):
        if shift and abs(shift) < rows:
            place = f"{abs(shift)} {'after' if shift > 0 else 'before'}"
            text = f"rows are shifted: each stands {place} its token's place"
            yield _Alternative("shifted", text, partial(_shifted, right, shift), shift)
    for other, states in enumerate(exact):
        if other != index:
            text = f"holds the states of request {other}"
            yield _Alternative(
                "other request",
                text,
                partial(_padded, states.stream[layer_id], rows),
                other,
            )
    twice = "residual added twice"
    text = "is twice the reference: a residual was added twice"
    yield _Alternative(twice, text, partial(right.mul, 2))
    if layer_id:
        text = f"is the sum of ids {layer_id - 1} and {layer_id}: a residual was added "
        previous = own.stream[layer_id - 1]
        yield _Alternative(twice, text + "twice", partial(right.add, previous))


def _shifted(states: Tensor, shift: int) -> Tensor:
    """Row t is row t - shift of ``states``, NaN where there is none."""
    result = states.roll(shift, dims=0)
    if shift > 0:
        result[:shift] = float("nan")
    else:
        result[shift:] = float("nan")
    return result


def _padded(states: Tensor, rows: int) -> Tensor:
    if len(states) >= rows:
        return states[:rows]
    result = states.new_full((rows, states.shape[1]), float("nan"))
    result[: len(states)] = states
    return result


def _leftover(
    sample: Sample,
    slot: int,
    layer_id: int,
    exact: Sequence[PromptStates],
    received: Tensor,
    wanted: Tensor,
    open_rows: Tensor,
    match: float,
) -> Iterator[Finding]:
    """Rows that no whole-sample alternative explains."""

    def finding(kind: str, text: str, rows: Tensor) -> Finding:
        return Finding(kind, text, sample.index, layer_id, slot, indices(rows))

    mixed = _found_elsewhere(
        sample, layer_id, exact, received, wanted, open_rows, match
    )
    if mixed.any():
        text = "rows belong to other tokens, of this request or of others"
        yield finding("mixed rows", text, mixed)
        open_rows = open_rows & ~mixed
    if not open_rows.any():
        return
    bad, right = received[open_rows], wanted[open_rows]
    factor = ((bad * right).sum() / (right * right).sum()).item()
    cosine = row_cosines(bad, right).median().item()
    if cosine > 0.9 and 1.5 < factor < 2.5:
        text = (
            f"is about twice the reference (factor {factor:.2f}, cosine {cosine:.3f}): "
            "most likely a residual was added twice"
        )
        yield finding("residual added twice", text, open_rows)
    elif cosine > 1 - match and abs(factor - 1) > 2 * match:
        yield finding("scaled", f"is the reference times {factor:.3g}", open_rows)
    else:
        text = "matches nothing known (other layer, row, request, norm or residual)"
        yield finding("unexplained", text, open_rows)


def _found_elsewhere(
    sample: Sample,
    layer_id: int,
    exact: Sequence[PromptStates],
    received: Tensor,
    wanted: Tensor,
    open_rows: Tensor,
    match: float,
) -> Tensor:
    """Which open rows equal the row of any token of any prompt in this layer."""
    import torch

    bank = torch.cat([states.stream[layer_id] for states in exact])
    own = row_errors(received, wanted)
    found = open_rows & False
    for row in indices(open_rows)[:_SEARCHED_ROWS]:
        best = row_errors(received[row].expand_as(bank), bank).min()
        found[row] = bool(best <= match and best < _CLEARLY * own[row])
    return found
