"""What the load tests share with the end-to-end tests: servers and prompts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
