"""The faults of the old connectors end with the release that is said to mend them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specshim.patching.catalogue import patches
from specshim.patching.report import judge_tree

pytestmark = pytest.mark.envs

PATCHES = {patch.id: patch for patch in patches("vllm")}

# The last release with the fault and the first without, of those that are tested.
ENDS = {
    "prefix-cache-cross-request": ("0.23.0", "0.24.0"),
    "batch-order-offset": ("0.23.0", "0.24.0"),
    "tp-write-race": ("0.23.0", "0.24.0"),
    "chunk-tail-stale": ("0.21.0", "0.22.1"),
    "resumed-blocks-stale": ("0.21.0", "0.22.1"),
    "padding-slot-overwrite": ("0.24.0", "0.25.1"),
    "decode-shape": ("0.19.1", "0.20.1"),
    "fp8-kv-crash": ("0.19.1", "0.20.1"),
    "vlm-text-config": ("0.19.1", "0.20.1"),
}


@pytest.mark.parametrize("patch_id", ENDS)
def test_last_and_first_release(environment: Callable, patch_id: str) -> None:
    last, first = ENDS[patch_id]
    assert _verdict(environment, patch_id, last) == "APPLY"
    assert _verdict(environment, patch_id, first) == "NOT_NEEDED"


# Of fp8-kv-crash the wrapped function never changed; later it finds nothing to do.
@pytest.mark.parametrize("patch_id", sorted(ENDS.keys() - {"fp8-kv-crash"}))
def test_unknown_releases_are_judged_by_their_code(
    environment: Callable, patch_id: str
) -> None:
    last, first = ENDS[patch_id]
    assert _verdict(environment, patch_id, last, "0.1.dev1+gabc123") == "APPLY"
    assert _verdict(environment, patch_id, first, "0.1.dev1+gabc123") != "APPLY"


def _verdict(
    environment: Callable, patch_id: str, release: str, named: str | None = None
) -> str:
    python = environment(f"vllm-{release}")
    root = python.evaluate("import sysconfig; print(sysconfig.get_path('purelib'))")
    return judge_tree(PATCHES[patch_id], named or release, Path(root)).kind
