"""How a contract is tested: one check, on pristine and on patched upstream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "checks"
ALWAYS = ("test_abort_before_schedule", "test_verdicts_before_0_25")
"""The modules that every run of the tests includes; each check of the others starts a
vLLM process or more, so that all of them take half an hour: `nox -s extended`."""
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


BOOT = """
import runpy, sys
import specshim
specshim.install()
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
runpy.run_path(sys.argv[1], run_name="__main__")
"""


class FaultShownError(Exception):
    """Upstream failed the check, in the way that the patch is there to mend."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.stem not in ALWAYS:
            item.add_marker(pytest.mark.extended)


@pytest.fixture
def check(environment: Callable) -> Callable[..., None]:
    """Run ``checks/NAME.py`` in an environment.

    ``fault`` is what a line of standard error starts with where upstream shows
    the fault; any other failure is an error of the check itself. ``without``
    names the patches to leave out, where upstream cannot run without the others.
    """

    def run(
        name: str, *, on: str, patched: bool, fault: str, without: str = ""
    ) -> None:
        # On the tap route the request would leave the road that is under test.
        switch = {"SPECSHIM_ROUTE": "cache"} if patched else {"SPECSHIM": "0"}
        if without:
            switch["SPECSHIM_DISABLE"] = without
        arguments = ("-c", BOOT, str(CHECKS / f"{name}.py"))
        done = environment(on).run(*arguments, variables={**VARIABLES, **switch})
        if done.returncode == 0:
            return
        # An engine's other processes may have the last word.
        shown = [line for line in done.stderr.splitlines() if line.startswith(fault)]
        if shown:
            raise FaultShownError(shown[-1])
        pytest.fail(f"{name} on {on}: {done.stderr[-3000:]}")

    return run
