"""Types of numbers on the command line."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise ArgumentTypeError(f"{text} is not a positive number")
    return value


def positive_float(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ArgumentTypeError(f"{text} is not a positive number")
    return value


# argparse names the type where the text is no number: "invalid number value: 'x'".
positive_int.__name__ = positive_float.__name__ = "number"
