"""The two lines of the Dockerfile in docs/pinning.md, in real environments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.envs
PINNING = Path(__file__).parent.parent.parent / "docs" / "pinning.md"
CHECK = ("-m", "specshim", "doctor", "--build-check")


@pytest.mark.parametrize("name", ["vllm-0.17.1", "vllm-0.24.0", "vllm-0.32.0"])
def test_an_image_with_a_tested_vllm_is_covered(
    environment: Callable, name: str
) -> None:
    python = environment(name)
    done = python.run(*CHECK)
    assert done.returncode == 0, done.stdout
    assert "build check: covered (tested)" in done.stdout
    version = name.removeprefix("vllm-")
    code = f"import specshim; specshim.require(vllm='=={version}', route='tap')"
    done = python.run("-c", f"{code}; import sys; print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_one_without_vllm_is_not(environment: Callable) -> None:
    python = environment("speculators-0.9.0")
    done = python.run(*CHECK)
    assert done.returncode == 1
    assert "not covered: There is no vLLM in this Python" in done.stdout
    done = python.run("-c", "import specshim; specshim.require(route='tap')")
    assert done.returncode == 1
    (*_, last) = done.stderr.strip().splitlines()
    assert last.startswith("specshim.RequirementNotMet: The route tap")


def test_the_fragment_has_these_lines() -> None:
    text = PINNING.read_text()
    assert "specshim doctor --build-check \\" in text
    assert "specshim.require(vllm=" in text and 'route="tap")' in text
