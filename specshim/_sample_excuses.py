"""Rows that are zero or constant in a sample that is right all the same.

Each rule is a way in which a real model or a real file comes to such rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_FP8_MAX = 448.0  # of float8_e4m3fn
_FP8_HALF_STEP = 2.0**-10  # what rounds to zero there
_TYPICAL = 8  # a row may be this much smaller than its layer's median row


def layer_names(layer_ids: Sequence[int | None] | None, layers: int) -> list[str]:
    """How sentences call the slots: by layer id where it is known."""
    if layer_ids is None or len(layer_ids) != layers:
        return [f"captured layer number {slot}" for slot in range(layers)]
    return [
        f"captured layer number {slot}" if i is None else f"layer {i}"
        for slot, i in enumerate(layer_ids)
    ]


def unexcused(
    table: torch.Tensor,
    pieces: Sequence[torch.Tensor],
    token_ids: torch.Tensor,
    layer_ids: Sequence[int | None] | None,
    silent_tokens: frozenset[int],
) -> torch.Tensor:
    """The entries of ``table`` that no rule explains.

    Args:
        table: bool [tokens, layers], where a row is zero (or constant).
        pieces: the sample, as tensors [tokens, layers of it, hidden size].
        layer_ids: of the slots, where they are known.
        silent_tokens: ids whose embedding is known to be zero.
    """
    token_ids = token_ids.to(table.device)
    by_token = _throughout(table, token_ids)
    excused = torch.zeros_like(table)
    excused |= _leading_run(table, token_ids, at_least=2)
    excused |= _one_token(table, by_token, token_ids)
    excused[:, _embedding_slots(layer_ids, table)] |= by_token[
        :, _embedding_slots(layer_ids, table)
    ]
    if silent_tokens:
        known = torch.tensor(sorted(silent_tokens), device=table.device)
        silent = torch.isin(token_ids, known)[:, None]
        excused |= (by_token | _leading_run(table, token_ids, at_least=1)) & silent
    left = table & ~excused
    if left.any():
        left &= ~_flushed_by_fp8(left, table, pieces)
    return left


def _throughout(table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Entries whose token shows the same at each of its places."""
    _, which = torch.unique(token_ids, return_inverse=True)
    tokens = int(which.max()) + 1
    shape = (tokens, table.shape[1])
    places = torch.zeros(shape, dtype=torch.long, device=table.device)
    places.index_add_(0, which, torch.ones_like(table, dtype=torch.long))
    shown = torch.zeros_like(places).index_add_(0, which, table.long())
    return table & (places == shown)[which]


def _leading_run(
    table: torch.Tensor, token_ids: torch.Tensor, at_least: int
) -> torch.Tensor:
    """Left padding with a token whose embedding is zero.

    Such rows see only each other, and zero in gives zero out in every layer. Of a token
    that nobody vouches for it takes two, since a first row alone is more likely a lost
    one; and something has to follow.
    """
    same = (token_ids == token_ids[0]).long().cumprod(0).bool()
    run = (table & same[:, None]).long().cumprod(0).bool()
    long_enough = run.sum(0) >= at_least
    return run & long_enough & ~run.all(0)


def _one_token(
    table: torch.Tensor, by_token: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """One token, at two places or more, and at no place otherwise; nothing else.

    Without attention nothing comes from other rows past a gate that is itself zero: in
    Mamba models a zero embedding stays zero, wherever it stands. A row that was lost
    would hardly stand at all places of one token and only there.
    """
    excused = torch.zeros_like(table)
    for slot in range(table.shape[1]):
        tokens = token_ids[table[:, slot]]
        alone = len(tokens) >= 2 and bool((tokens == tokens[0]).all())
        if alone and not table[:, slot].all():
            excused[:, slot] = by_token[:, slot]
    return excused


def _embedding_slots(
    layer_ids: Sequence[int | None] | None, table: torch.Tensor
) -> list[int]:
    """Slots that are, or may be, the embedding: there a row is its token's own.

    Padding tokens (padding_idx) and reserved ones that were never trained have zero or
    constant embeddings.
    """
    layers = table.shape[1]
    known = layer_ids is not None and len(layer_ids) == layers
    ids: list[int | None] = [None] * layers
    if known and layer_ids is not None:
        ids = list(layer_ids)
    if layers > 1 and ids[0] is None:
        ids[0] = 0  # ids usually ascend
    return [slot for slot, i in enumerate(ids) if i == 0 and not table[:, slot].all()]


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
    return flushed
