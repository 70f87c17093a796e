"""examples/train.py with the targets that the model means; the same flags."""

from __future__ import annotations

import specshim  # isort: skip  # noqa: F401  # before speculators: the guard of samples

import runpy
from pathlib import Path

from norm_gain import mind_the_gain  # type: ignore[import-not-found]

if __name__ == "__main__":
    mind_the_gain()
    example = Path(__file__).parents[2] / "examples" / "train.py"
    runpy.run_path(str(example), run_name="__main__")
