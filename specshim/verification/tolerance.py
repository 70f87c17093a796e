"""How far right states may be from the reference, and why.

Errors are relative: ``|received - reference| / |reference|``, of one row (a
token's state) or of all rows of one layer together. The reference is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# Measured on some 25 families, float32 on both sides: right states differ by up to
# 2.5e-6. NemotronH and Zamba2 reach 1.3e-4 and 4.7e-4, because transformers clamps
# their time steps and vLLM does not; nothing wrong comes below 1e-2.
FLOAT32_RIGHT = 1e-5
FLOAT32_BOUND = 1e-3
ROW_FACTOR = 10.0  # a single row may be off by more than all rows together

# Two right implementations in half precision are about as far from float32 as each
# other; kernels sum in different orders, which the factor allows for.
NOISE_FACTOR = 2.5
HALF_BOUND = 0.1
HALF_ROW_BOUND = 0.25
_EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True)
class Limits:
    """What is allowed for one layer.

    All rows together are right up to ``right``, up to ``bound`` with a warning;
    the median row may be off by ``typical``, a single one by ``row``.
    ``measured`` is the distance of the reference in the server's dtype from the
    float32 reference, None for a float32 server. ``loose_rows`` single rows may
    be beyond ``row``: as many as half precision itself moves so far (routers of
    mixtures of experts flip), with a factor.
    """

    right: float
    bound: float
    row: float
    typical: float
    measured: float | None = None
    measured_row: float | None = None
    loose_rows: int = 0
    decidable: bool = True


def float32_limits() -> Limits:
    """The fixed limits of a float32 server against a float32 reference."""
    return Limits(
        right=FLOAT32_RIGHT,
        bound=FLOAT32_BOUND,
        row=FLOAT32_BOUND * ROW_FACTOR,
        typical=FLOAT32_BOUND,
    )


def half_limits(dtype: str, distance: float, rows: Sequence[float]) -> Limits:
    """Limits of a bfloat16 or float16 server, from what that dtype costs the reference.

    Args:
        distance: of the reference in ``dtype`` from the float32 one, all rows.
        rows: the same, row by row; at least one.
    """
    floor = 2 * _EPSILON[dtype]
    worst = max(rows)
    far = sum(row > HALF_ROW_BOUND for row in rows)
    wanted = NOISE_FACTOR * distance
    allowed = min(max(wanted, floor), HALF_ROW_BOUND if far else HALF_BOUND)
    return Limits(
        right=allowed,
        bound=allowed,
        typical=min(max(NOISE_FACTOR * median(rows), floor), allowed),
        row=min(max(NOISE_FACTOR * worst, 2 * floor), HALF_ROW_BOUND),
        measured=distance,
        measured_row=worst,
        loose_rows=int(NOISE_FACTOR * far) + 2 if far else 0,
        decidable=wanted <= allowed,
    )


def explain(dtype: str, limits: Sequence[Limits]) -> str:
    """The tolerance in words: the reference, the limits, where they are from."""
    if dtype == "float32":
        return (
            "float32 server against a float32 reference: right below "
            f"{FLOAT32_RIGHT:g} (correct servers measured 2.5e-6), with a warning up "
            f"to {FLOAT32_BOUND:g} (Mamba models whose time steps transformers clamps "
            f"measured 5e-4); single rows up to {FLOAT32_BOUND * ROW_FACTOR:g}"
        )
    measured = [limit.measured or 0.0 for limit in limits]
    return (
        f"{dtype} server against a float32 reference: {dtype} moves this model's "
        f"reference by {min(measured):.2g} to {max(measured):.2g}, depending on the "
        f"layer, so a server is right up to {NOISE_FACTOR:g} times that, at least "
        f"{2 * _EPSILON[dtype]:.2g} and at most "
        f"{max(limit.right for limit in limits):.2g}; single rows up to "
        f"{max(limit.row for limit in limits):.2g}"
    )
