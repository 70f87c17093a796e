"""Groups and pages of models that extract nothing, or need no help, stay vLLM's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.envs


@pytest.mark.parametrize("release", ["vllm-0.22.1", "vllm-0.28.0", "vllm-0.32.0"])
def test_ordinary_layouts(check: Callable, release: str) -> None:
    check("kv_layouts_untouched", on=release, patched=True, fault="no fault to show")
