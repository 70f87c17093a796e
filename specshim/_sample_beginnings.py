"""Samples that begin with the same tokens begin with the same states.

A causal model computes a row from the tokens up to it and nothing else, so this tells
rows that were shifted, or taken from other requests, without any reference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

_ROWS = 64  # that are kept of a sample's beginning
_SAMPLES = 8
_SURE = 2  # samples that have to differ, and none agree
# Of what a row may differ by, relative to its norm. Batching, chunking and bfloat16
# move rows by up to 0.15, FP8 by less than 0.1; rows of other places differ by some 1.
_FAR = 0.5


@dataclass(frozen=True)
class _Beginning:
    token_ids: tuple[int, ...]  # as many as rows
    tokens: int  # of the whole sample
    rows: torch.Tensor  # [rows, layers, hidden size]


@dataclass
class Beginnings:
    """The beginnings of the samples that were seen last, each of its own prompt."""

    kept: deque[_Beginning] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def __reduce__(self) -> tuple[type[Beginnings], tuple[()]]:
        """A worker that gets a copy of the dataset begins anew, without the tensors."""
        return Beginnings, ()

    def problem(
        self, pieces: Sequence[torch.Tensor], token_ids: torch.Tensor
    ) -> str | None:
        """What is wrong, as the end of a sentence, and remember the sample.

        Args:
            pieces: the sample, as tensors [tokens, layers of it, hidden size].
            token_ids: tensor [tokens].
        """
        ids = _compared(token_ids)
        if not ids:
            return None
        rows = torch.cat([piece[: len(ids)] for piece in pieces], 1).clone()
        new = _Beginning(ids, len(token_ids), rows)
        others = [old for old in self.kept if _another(old, new)]
        if len(others) == len(self.kept):  # else it has been seen
            self.kept.append(new)
        verdicts = [_first_difference(old, new) for old in others]
        differing = [row for row in verdicts if row is not None and row >= 0]
        if -1 in verdicts or len(differing) < _SURE:
            return None
        row = min(differing)
        alike = f"{row + 1} tokens" if row else "token"
        return (
            f"row {row} (token {ids[row]}) of {len(token_ids)} is another one than in "
            f"{len(differing)} earlier samples that begin with the same {alike}, on "
            "which alone it depends, so the rows are not those of their tokens"
        )


def _compared(token_ids: torch.Tensor) -> tuple[int, ...]:
    """The first token ids, up to one that repeats: in a run of the same token that
    stands for an image or a sound, the states depend on more than the ids."""
    ids = tuple(token_ids[: _ROWS + 1].tolist())
    end = next((i for i in range(1, len(ids)) if ids[i] == ids[i - 1]), len(ids) + 1)
    return ids[: min(end - 1, _ROWS)]


def _another(old: _Beginning, new: _Beginning) -> bool:
    return old.token_ids != new.token_ids or old.tokens != new.tokens


def _first_difference(old: _Beginning, new: _Beginning) -> int | None:
    """The first row that differs, -1 where they agree, None where that says nothing."""
    pairs = zip(old.token_ids, new.token_ids, strict=False)
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    length = min(len(old.token_ids), len(new.token_ids)) if shared is None else shared
    if not length or old.rows.shape[1:] != new.rows.shape[1:]:
        return None
    one, other = old.rows[:length].float(), new.rows[:length].float()
    size = torch.maximum(one.norm(dim=-1), other.norm(dim=-1))
    far = (one - other).norm(dim=-1) > _FAR * size
    rows = (far.sum(1) * 2 >= far.shape[1]).nonzero()
    if len(rows):
        return int(rows[0])
    # Rows that are moved to the front differ only where the tokens begin to.
    return None if shared is None else -1
