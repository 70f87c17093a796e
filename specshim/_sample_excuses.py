"""Rows that are zero or constant in a sample that is right all the same.

Each rule is a way in which a real model or a real file comes to such rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_FP8_MAX = 448.0  # of float8_e4m3fn
_FP8_MAGNITUDES = 127  # that it has, zero included
_FP8_HALF_STEP = 2.0**-10  # what rounds to zero there
_TYPICAL = 8  # a row may be this much smaller than its layer's median row
_EARLY = 1024  # an early layer may be this much smaller than the others of its token
_FEW = 4  # tokens with a zero or constant embedding in one prompt
_SHORT = 8  # rows of a silent token in a row; lost rows come in longer runs


def layer_names(layer_ids: Sequence[int | None] | None, layers: int) -> list[str]:
    """How sentences call the slots: by layer id where it is known."""
    ids = _known(layer_ids, layers)
    return [
        f"slot {slot} of 0..{layers - 1}" if i is None else f"layer {i}"
        for slot, i in enumerate(ids)
    ]


def unexcused(
    table: torch.Tensor,
    pieces: Sequence[torch.Tensor],
    token_ids: torch.Tensor,
    layer_ids: Sequence[int | None] | None,
    silent_tokens: frozenset[int],
    constant: bool = False,
) -> torch.Tensor:
    """The entries of ``table`` that no rule explains.

    Args:
        table: bool [tokens, layers], where a row is zero (or constant).
        pieces: the sample, as tensors [tokens, layers of it, hidden size].
        layer_ids: of the slots, where they are known.
        silent_tokens: ids whose embedding is known to be zero.
        constant: the rows are constant, not zero: only embeddings are.
    """
    token_ids = token_ids.to(table.device)
    by_token = _throughout(table, token_ids)
    known = torch.tensor(sorted(silent_tokens), device=table.device)
    silent = torch.isin(token_ids, known)
    excused = torch.zeros_like(table)
    for slot, certain in _embedding_slots(layer_ids, table):
        excused[:, slot] = _embedded(by_token[:, slot], token_ids, silent, certain)
    if not constant:
        excused |= _silent(table, by_token, token_ids, silent)
    left = table & ~excused
    if left.any() and not constant:
        left &= ~_flushed_by_fp8(left, table, pieces)
    return left


def _known(layer_ids: Sequence[int | None] | None, layers: int) -> list[int | None]:
    if layer_ids is None or len(layer_ids) != layers:
        return [None] * layers
    return list(layer_ids)


def _throughout(table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Entries whose token shows the same at each of its places."""
    _, which = torch.unique(token_ids, return_inverse=True)
    tokens = int(which.max()) + 1
    shape = (tokens, table.shape[1])
    places = torch.zeros(shape, dtype=torch.long, device=table.device)
    places.index_add_(0, which, torch.ones_like(table, dtype=torch.long))
    shown = torch.zeros_like(places).index_add_(0, which, table.long())
    return table & (places == shown)[which]


def _silent(
    table: torch.Tensor,
    by_token: torch.Tensor,
    token_ids: torch.Tensor,
    silent: torch.Tensor,
) -> torch.Tensor:
    """Tokens that stay zero from the embedding on, in any layer.

    Without attention nothing comes from other rows past a gate that is itself zero: in
    Mamba models a zero embedding stays zero wherever it stands. With attention that
    holds for left padding, whose rows see only each other. Of a token that nobody
    vouches for it takes places far apart, since a lost row has its neighbours' fate.
    """
    excused = torch.zeros_like(table)
    deep = table.long().cumprod(1).bool()  # what is zero later was zero before
    for token in token_ids[deep.any(1)].unique().tolist():
        here = token_ids == token
        starts, lengths = _runs(here)
        if silent[here][0]:
            if len(starts) > 1 or lengths[0] > 1 or starts[0] in (0, len(here) - 1):
                excused |= by_token & deep & here[:, None]
            leading = (here[:, None] & deep).long().cumprod(0).bool()
            excused |= leading & ~leading.all(0)
        elif len(starts) > 1 and max(lengths) <= _SHORT:
            # and no other token has such rows
            alone = ~(deep & ~here[:, None]).any(0)
            excused |= by_token & deep & here[:, None] & alone
    return excused & ~table.all(0)


def _runs(here: torch.Tensor) -> tuple[list[int], list[int]]:
    """First places and lengths of the contiguous runs in a bool [tokens]."""
    places = here.nonzero().flatten()
    new = torch.ones_like(places, dtype=torch.bool)
    new[1:] = places.diff() > 1
    firsts = new.nonzero().flatten().tolist()
    ends = [*firsts[1:], len(places)]
    lengths = [end - first for first, end in zip(firsts, ends, strict=True)]
    return places[new].tolist(), lengths


def _embedding_slots(
    layer_ids: Sequence[int | None] | None, table: torch.Tensor
) -> list[tuple[int, bool]]:
    """Slots that are the embedding, or may be, and whether that is certain."""
    layers = table.shape[1]
    ids = _known(layer_ids, layers)
    slots = [(slot, True) for slot, i in enumerate(ids) if i == 0]
    if layers > 1 and ids[0] is None:
        slots.append((0, False))  # ids usually ascend
    return [(slot, certain) for slot, certain in slots if not table[:, slot].all()]


def _embedded(
    by_token: torch.Tensor, token_ids: torch.Tensor, silent: torch.Tensor, certain: bool
) -> torch.Tensor:
    """Rows of the embedding that are their token's own.

    Padding tokens (padding_idx) and reserved ones that were never trained have zero or
    constant embeddings; a prompt has few of them. Where the slot may be another layer,
    it takes a token that shows it more than once, and most rows have to be other.
    """
    found, counts = token_ids[by_token & ~silent].unique(return_counts=True)
    if not certain:
        found = found[counts > 1]
        if int(counts.sum()) > len(token_ids) // 2:
            found = found[:0]
    if len(found) > _FEW:
        found = found[:0]
    return by_token & (silent | torch.isin(token_ids, found))


def _flushed_by_fp8(
    left: torch.Tensor, table: torch.Tensor, pieces: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Rows that FP8 storage with one scale per token has flushed to zero.

    hs_connectors 0.9.0 scales all layers of a token by its largest value; one massive
    activation, and the early layers' values fall below half of FP8's smallest step.
    """
    slots = [piece[:, slot] for piece in pieces for slot in range(piece.shape[1])]
    rows = left.any(1).nonzero().flatten()
    tops = torch.stack([slot[rows].abs().amax(-1).float() for slot in slots], 1)
    floor = tops.amax(1) / _FP8_MAX * _FP8_HALF_STEP
    flushed = torch.zeros_like(left)
    for slot in left.any(0).nonzero().flatten().tolist():
        others = (~table[:, slot]).nonzero().flatten()[:256]
        if len(others):
            usual = slots[slot][others].abs().amax(-1).float().median()
            flushed[rows, slot] = floor >= usual / _TYPICAL
        elif len(rows) <= _FEW:  # no row to compare with, as in a prompt of one token
            for row, limit in zip(rows.tolist(), floor.tolist(), strict=True):
                flushed[row, slot] = _one_scale(slots, row, limit)
    return flushed


def _one_scale(slots: Sequence[torch.Tensor], row: int, floor: float) -> bool:
    """Whether a token has the few magnitudes that one FP8 scale leaves.

    And so large a one that the values of an early layer round to zero beside it.
    """
    sizes = torch.stack([slot[row] for slot in slots]).abs().float()
    sizes = sizes[sizes > 0]
    if not len(sizes) or len(sizes.unique()) >= _FP8_MAGNITUDES:
        return False
    return floor >= float(sizes.median()) / _EARLY
