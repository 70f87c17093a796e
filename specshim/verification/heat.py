"""Where in a sample the error lies: token by layer, no more than a page can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_CELLS = 6_000
MOST_COLUMNS = 240


@dataclass(frozen=True)
class HeatMap:
    """The worst relative error of each run of tokens in each slot of one sample.

    Column ``c`` of a row stands for the tokens ``c * step`` up to the next column's
    first, or the last of ``tokens``.
    """

    sample: int
    tokens: int
    step: int
    layer_ids: tuple[int, ...]
    limits: tuple[float, ...]  # what is allowed for a single row of each slot
    errors: tuple[tuple[float, ...], ...]  # [slot][column]
    zeros: frozenset[tuple[int, int]] = (
        frozenset()
    )  # (slot, column) with a row of zeros

    def tokens_of(self, column: int) -> tuple[int, int]:
        """The first and the last token of a column."""
        first = column * self.step
        return first, min(first + self.step, self.tokens) - 1


def heat_map(
    sample: int,
    layer_ids: Sequence[int],
    limits: Sequence[float],
    errors: Sequence[Sequence[float]],
    zeros: Sequence[Sequence[int]],
) -> HeatMap:
    """The map of one sample from its errors ``[slot][token]``; at least one of each.

    Args:
        sample: which one.
        layer_ids: of each slot.
        limits: of a single row of each slot.
        errors: relative, infinite for NaN.
        zeros: tokens of each slot whose row is zero and should not be.
    """
    tokens = len(errors[0])
    columns = max(1, min(MOST_COLUMNS, MOST_CELLS // len(errors), tokens))
    step = -(-tokens // columns)
    return HeatMap(
        sample=sample,
        tokens=tokens,
        step=step,
        layer_ids=tuple(layer_ids),
        limits=tuple(limits),
        errors=tuple(
            tuple(max(row[at : at + step]) for at in range(0, tokens, step))
            for row in errors
        ),
        zeros=frozenset(
            (slot, token // step) for slot, row in enumerate(zeros) for token in row
        ),
    )
