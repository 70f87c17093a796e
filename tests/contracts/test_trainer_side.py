"""Faults of speculators and hs_connectors, with and without our patch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import FaultShownError

pytestmark = pytest.mark.envs

# The patch, how the fault shows, releases that have it (each of another form of the
# code), and a release that has it mended.
FAULTS = [
    (
        "zero-states-in-the-cache",
        "AssertionError: zeros were taken for a sample",
        ["speculators-0.5.0", "speculators-0.6.0", "speculators-0.9.0"],
        None,
    ),
    (
        "zero-states-pass-validation",
        "AssertionError: zeros were taken for a sample",
        ["speculators-0.7.0.2", "speculators-0.9.0"],
        None,
    ),
    (
        "mislabelled-layers-and-stale-cache",
        "AssertionError: taken: [True, True, True, True, True, True]",
        ["speculators-0.6.0", "speculators-0.7.0.2", "speculators-0.9.0"],
        None,
    ),
    (
        "nfs-flock",
        "OSError: [Errno 9] Bad file descriptor",
        ["speculators-0.6.0", "speculators-0.7.0"],
        "speculators-0.7.0.2",
    ),
    (
        "online-lock-skip",
        "FileNotFoundError: No such file or directory",
        ["speculators-0.5.0"],
        "speculators-0.6.0",
    ),
    (
        "cache-dir",
        "FileNotFoundError: ",
        ["speculators-0.5.0", "speculators-0.6.0"],
        None,  # 0.7 has it mended, and takes other arguments
    ),
    (
        "nan-kills-training",
        "ValueError: Hidden states contain NaN values",
        ["speculators-0.7.0.2"],
        "speculators-0.9.0",
    ),
    (
        "missing-file-kills-training",
        "FileNotFoundError: No such file or directory: /dev/null/no hidden states: ",
        ["speculators-0.5.0"],
        "speculators-0.6.0",
    ),
    (
        "empty-sample-dtype",
        "AssertionError",
        ["speculators-0.5.0"],
        None,  # 0.6 has it mended, and takes other arguments
    ),
    (
        "lock-timeout",
        "TimeoutError: Timed out waiting for lock",
        ["speculators-0.9.0"],
        None,
    ),
    (
        "orphans-after-lock-timeout",
        "AssertionError: left behind: ",
        ["speculators-0.9.0"],
        None,
    ),
    (
        "orphans-after-lock-timeout-vendored",
        "AssertionError: left behind: ",
        ["speculators-0.7.0.2"],
        None,
    ),
    (
        "fp8-precision",
        "AssertionError: an unpatched reader is off by",
        ["speculators-0.9.0", "hs_connectors-0.9.0"],
        None,
    ),
    (
        "heads-before-slots",
        "IndexError: ",
        ["hs_connectors-0.7.0"],
        "hs_connectors-0.9.0",
    ),
]
AFFECTED = [
    pytest.param(patch, fault, release, id=f"{patch}-{release}")
    for patch, fault, releases, _ in FAULTS
    for release in releases
]
MENDED = [
    pytest.param(patch, fault, release, id=f"{patch}-{release}")
    for patch, fault, _, release in FAULTS
    if release
]


def script(patch: str) -> str:
    return patch.replace("-", "_")


@pytest.mark.parametrize(("patch", "fault", "release"), AFFECTED)
@pytest.mark.xfail(raises=FaultShownError, strict=True, reason="upstream's fault")
def test_pristine_upstream_shows_the_fault(
    check: Callable, patch: str, fault: str, release: str
) -> None:
    check(script(patch), on=release, patched=False, fault=fault)


@pytest.mark.parametrize(("patch", "fault", "release"), AFFECTED)
def test_patched_upstream_passes(
    check: Callable, patch: str, fault: str, release: str
) -> None:
    check(script(patch), on=release, patched=True, fault=fault)


@pytest.mark.parametrize("release", ["0.6.0", "0.7.0.2", "0.9.0"])
def test_what_becomes_of_refused_samples(check: Callable, release: str) -> None:
    check(
        "refused_samples",
        on=f"speculators-{release}",
        patched=True,
        fault="nothing to show",
        without="nan-kills-training",
    )


@pytest.mark.parametrize("patched", [False, True], ids=["stock", "specshim"])
@pytest.mark.parametrize("release", ["0.6.0", "0.7.0.2", "0.8.1", "0.9.0"])
def test_the_server_s_reason_reaches_the_trainer(
    check: Callable, release: str, patched: bool
) -> None:
    check(
        "missing_file_kills_training",
        on=f"speculators-{release}",
        patched=patched,
        fault="nothing to show",
    )


@pytest.mark.parametrize(("patch", "fault", "release"), MENDED)
def test_upstream_has_it_mended(
    check: Callable, patch: str, fault: str, release: str
) -> None:
    check(script(patch), on=release, patched=False, fault=fault)
