"""Relative errors of states, as small tensor functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_TINY = 1e-30


def row_errors(received: Tensor, wanted: Tensor) -> Tensor:
    """``|received - wanted| / |wanted|`` per row; NaN counts as infinitely wrong."""
    difference = (received - wanted).norm(dim=-1)
    errors: Tensor = difference / wanted.norm(dim=-1).clamp_min(_TINY)
    return errors.nan_to_num(nan=float("inf"), posinf=float("inf"))


def total_error(received: Tensor, wanted: Tensor) -> float:
    """The same over all rows together."""
    error = ((received - wanted).norm() / wanted.norm().clamp_min(_TINY)).item()
    return float("inf") if error != error else float(error)


def row_cosines(received: Tensor, wanted: Tensor) -> Tensor:
    """The cosine of the angle between received and wanted rows; 0 for zero or NaN."""
    scale = received.norm(dim=-1) * wanted.norm(dim=-1)
    cosines: Tensor = (received * wanted).sum(-1) / scale.clamp_min(_TINY)
    return cosines.nan_to_num(nan=0.0)


def indices(rows: Tensor) -> tuple[int, ...]:
    """Where a boolean vector is true."""
    return tuple(rows.nonzero().flatten().tolist())
