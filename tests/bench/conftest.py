"""Makes the top-level folder benchmarks/ importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
