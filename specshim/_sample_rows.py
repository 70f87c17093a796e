"""The guard's look at the rows of a sample: a probe of each, a full look at suspects.

Floats are read as integers with the sign bit cleared: their order is that of the
magnitudes, zero is 0, and from one bit pattern on all are infinite or NaN. A probe is
8 neighbouring values of a row, in one cache line: 1.25 MiB of a sample of 160 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specshim import _sample_excuses as excuses

_LAYOUT = {  # integers of the same width, and the magnitude that infinity has
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
_IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_PROBE = 8  # values
_WHOLE_ROWS = 4  # that are read from end to end in any sample
_SMALL = 1 << 20  # bytes; a sample up to this size is read whole
_BLOCK = 256  # rows
_MIN_CONSTANT = 8  # values in a row, below which equal values may be chance
_MIN_IDENTICAL = 128  # values in a layer, likewise
# vLLM's load_format=dummy draws weights within 1e-3: in bfloat16 no layer of such a
# model changes the stream, and its samples are right though their layers are equal.
_DUMMY = 2e-3


def shape_problem(
    pieces: Sequence[Any],
    token_ids: Any,
    prompt: Sequence[int] | None,
    layer_ids: Sequence[int | None] | None,
    hidden_size: int | None,
    who: str,
) -> str | None:
    """What is wrong with types, shapes and token ids, as the end of a sentence."""
    for piece in pieces:
        if not isinstance(piece, torch.Tensor):
            return f"they are of type {type(piece).__name__}, not a tensor"
        if piece.dtype.is_floating_point and piece.dtype.itemsize == 1:
            return (
                f"they are {_name(piece)} without their scales, so the trainer has to "
                "read them with the FP8 backend"
            )
        if piece.dtype not in _LAYOUT:
            return f"they are of type {_name(piece)}, which no model's states have"
        if piece.dim() != 3:
            return (
                f"their shape is {_shape(piece)}, which is not [tokens, layers, hidden "
                "size]"
            )
    if not isinstance(token_ids, torch.Tensor) or token_ids.dim() != 1:
        return "their token ids are not a tensor [tokens]"
    tokens = len(token_ids)
    if tokens and token_ids.dtype not in _IDS:
        return f"their token ids are of type {_name(token_ids)}"
    layers = sum(piece.shape[1] for piece in pieces)
    rows, hidden = pieces[0].shape[0], pieces[0].shape[2]
    if any(len(p) != rows or p.shape[2] != hidden for p in pieces):
        return "their layers differ in shape"
    if rows != tokens and (tokens or prompt is not None):
        return f"they have {rows} rows for {tokens} token ids"
    if not (rows and layers and hidden):
        return f"their shape [{rows}, {layers}, {hidden}] holds nothing"
    if layer_ids is not None and layers != len(layer_ids):
        return f"they have {layers} layers, the {who} {len(layer_ids)}"
    if hidden_size is not None and hidden != hidden_size:
        return f"their hidden size is {hidden}, the trainer expects {hidden_size}"
    return _token_problem(token_ids, prompt)


def _token_problem(token_ids: Any, prompt: Sequence[int] | None) -> str | None:
    if prompt is None:
        return None
    if len(prompt) != len(token_ids):
        return f"they have {len(token_ids)} rows, the prompt has {len(prompt)} tokens"
    wrong = token_ids.cpu() != torch.tensor(list(prompt))
    if not wrong.any():
        return None
    row = int(wrong.nonzero()[0])
    return (
        f"row {row} was computed from token {int(token_ids[row])}, the prompt has "
        f"{int(prompt[row])} there"
    )


def row_problem(
    pieces: Sequence[torch.Tensor],
    token_ids: torch.Tensor,
    layer_ids: Sequence[int | None] | None,
    silent_tokens: frozenset[int],
    thorough: bool,
) -> str | None:
    """The first row or layer that cannot be right, as the end of a sentence."""
    if not len(token_ids):  # of prompt embeddings, each row is its own
        token_ids = torch.arange(-len(pieces[0]), 0)
    bits = [piece.detach().view(_LAYOUT[piece.dtype][0]) for piece in pieces]
    infinite = _LAYOUT[pieces[0].dtype][1]
    small = sum(p.numel() * p.element_size() for p in pieces) <= _SMALL
    hidden = bits[0].shape[2]
    start = (hidden - min(_PROBE, hidden)) // 2
    probes = [b[:, :, start : start + _PROBE].contiguous() for b in bits]
    probes = [_magnitude(p.permute(2, 0, 1).contiguous()) for p in probes]  # for speed
    high = torch.cat([p.amax(0) for p in probes], 1)
    low = torch.cat([p.amin(0) for p in probes], 1)
    names = excuses.layer_names(layer_ids, high.shape[1])
    found = _nonfinite(bits, high, infinite, small or thorough)
    if found is not None:
        row, slot = found
        what = "NaN" if _has_nan(_row(pieces, row, slot)) else "infinite"
        token = _token(token_ids, row)
        return f"row {row}{token} of {len(high)} has {what} values in {names[slot]}"
    flat = high == low
    if flat.any():
        problem = _flat_problem(
            pieces, bits, flat, token_ids, layer_ids, silent_tokens, names
        )
        if problem:
            return problem
    return _identical_problem(pieces, high, low, layer_ids, names)


def _nonfinite(
    bits: Sequence[torch.Tensor], high: torch.Tensor, infinite: int, whole: bool
) -> tuple[int, int] | None:
    """Row and slot of the first value found that is infinite or NaN.

    A value that is not finite makes its row NaN from the next layer's norm on. Only in
    the last layer does it stay alone, and overflows come in the channels that are large
    anyway: those are looked at in every row.
    """
    if int(high.max()) >= infinite:
        row, slot = (high >= infinite).nonzero()[0].tolist()
        return row, slot
    tokens, last = len(high), high.shape[1] - 1
    if whole:
        rows = torch.arange(tokens)
    else:
        rows = torch.linspace(0, tokens - 1, min(_WHOLE_ROWS, tokens)).long()
    offset = 0
    for piece in bits:
        chosen = _magnitude(piece if whole else piece[rows.to(piece.device)])
        if int(chosen.max()) >= infinite:
            row, slot = (chosen.amax(-1) >= infinite).nonzero()[0].tolist()
            return int(rows[row]), offset + slot
        offset += piece.shape[1]
    if not whole:
        channel = int(chosen[:, -1].amax(0).argmax())
        large = _magnitude(bits[-1][:, -1, channel])
        if int(large.max()) >= infinite:
            return int((large >= infinite).nonzero()[0]), last
    return None


def _flat_problem(
    pieces: Sequence[torch.Tensor],
    bits: Sequence[torch.Tensor],
    flat: torch.Tensor,
    token_ids: torch.Tensor,
    layer_ids: Sequence[int | None] | None,
    silent_tokens: frozenset[int],
    names: Sequence[str],
) -> str | None:
    """Rows whose probe shows one magnitude only: all zero, constant, or all right."""
    zero, constant = torch.zeros_like(flat), torch.zeros_like(flat)
    offset = 0
    for piece in bits:
        part = flat[:, offset : offset + piece.shape[1]].nonzero()
        for block in part.split(_BLOCK):
            rows, slots = block.unbind(1)
            values = piece[rows, slots]
            zero[rows, offset + slots] = _magnitude(values).amax(-1) == 0
            same = (values == values[:, :1]).all(-1)
            constant[rows, offset + slots] = same & (_magnitude(values[:, 0]) != 0)
        offset += piece.shape[1]
    if bits[0].shape[2] < _MIN_CONSTANT:
        constant.zero_()
    if zero.all():
        return f"all {len(zero)} rows are zero in every layer, so none was computed"
    for table, what in ((zero, "all zero"), (constant, "one value throughout")):
        if not table.any():
            continue
        bad = excuses.unexcused(
            table, pieces, token_ids, layer_ids, silent_tokens, table is constant
        )
        if bad.any():
            return _flat_sentence(bad, table, token_ids, names, what)
    return None


def _flat_sentence(
    bad: torch.Tensor,
    table: torch.Tensor,
    token_ids: torch.Tensor,
    names: Sequence[str],
    what: str,
) -> str:
    rows = bad.any(1).nonzero().flatten()
    row, count = int(rows[0]), len(rows)
    slot = int(bad[row].nonzero()[0])
    where = "every layer" if table[row].all() else names[slot]
    more = f" and {count - 1} more" if count > 1 else ""
    verb = "are" if count > 1 else "is"
    return (
        f"row {row}{_token(token_ids, row)}{more} of {len(bad)} {verb} {what} in "
        f"{where}, so not what the model computed"
    )


def _identical_problem(
    pieces: Sequence[torch.Tensor],
    high: torch.Tensor,
    low: torch.Tensor,
    layer_ids: Sequence[int | None] | None,
    names: Sequence[str],
) -> str | None:
    """Two layers that are equal over the whole sample, though two were requested."""
    tokens, layers = high.shape
    if tokens * pieces[0].shape[2] < _MIN_IDENTICAL:
        return None
    seen = list(zip(high[-1].tolist(), low[-1].tolist(), strict=True))
    for one in range(layers):
        for other in range(one + 1, layers):
            if seen[one] != seen[other] or _may_be_one(layer_ids, one, other):
                continue
            if _equal(_slot(pieces, one), _slot(pieces, other)):
                both = f"{names[one]} and {names[other]}"
                return (
                    f"{both} are identical in every row, from row 0 on, so one of them "
                    "was not captured"
                )
    return None


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    blocks = zip(one.split(_BLOCK), other.split(_BLOCK), strict=True)
    if not torch.equal(one[:2], other[:2]):
        return False  # two probes may be alike by chance
    if not all(torch.equal(a, b) for a, b in blocks):
        return False
    return any(float(block.abs().amax()) > _DUMMY for block in one.split(_BLOCK))


def _may_be_one(layer_ids: Sequence[int | None] | None, one: int, other: int) -> bool:
    """Whether two slots were, or may have been, requested with the same id.

    An id that is not known stands for the last layer, which the server appends: it may
    be the largest of the others, or where none is known, the one before it.
    """
    if layer_ids is None:
        return False
    first, second = layer_ids[one], layer_ids[other]
    if first is None and second is None:
        return 1 <= one == other - 1 == len(layer_ids) - 2
    if first is None or second is None:
        known = [i for i in layer_ids if i is not None]
        return max(known) in (first, second)
    return first == second


def _token(token_ids: torch.Tensor, row: int) -> str:
    token = int(token_ids[row])
    return f" (token {token})" if token >= 0 else ""


def _magnitude(bits: torch.Tensor) -> torch.Tensor:
    return bits & torch.iinfo(bits.dtype).max


def _slot(pieces: Sequence[torch.Tensor], slot: int) -> torch.Tensor:
    for piece in pieces:
        if slot < piece.shape[1]:
            return piece[:, slot]
        slot -= piece.shape[1]
    raise IndexError(slot)


def _row(pieces: Sequence[torch.Tensor], row: int, slot: int) -> torch.Tensor:
    return _slot(pieces, slot)[row]


def _has_nan(row: torch.Tensor) -> bool:
    return bool(torch.isnan(row).any())


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))
