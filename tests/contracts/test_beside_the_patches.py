"""What patches must leave alone, and what becomes of the samples that they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.envs


@pytest.mark.parametrize("release", ["0.22.1", "0.28.0", "0.32.0"])
def test_ordinary_layouts_stay_upstreams(check: Callable, release: str) -> None:
    check("kv_layouts_untouched", on=f"vllm-{release}", patched=True)


@pytest.mark.parametrize("release", ["0.6.0", "0.7.0.2", "0.9.0"])
def test_refused_samples(check: Callable, release: str) -> None:
    without = ("nan-kills-training",)
    on = f"speculators-{release}"
    check("refused_samples", on=on, patched=True, without=without)


@pytest.mark.parametrize("patched", [False, True], ids=["stock", "specshim"])
@pytest.mark.parametrize("release", ["0.6.0", "0.7.0.2", "0.8.1", "0.9.0"])
def test_the_server_s_reason_reaches_the_trainer(
    check: Callable, release: str, patched: bool
) -> None:
    on = f"speculators-{release}"
    check("missing_file_kills_training", on=on, patched=patched)
