"""Fixtures that all tests share: other environments, and an installed specshim.

SPECSHIM_TEST_ENVS maps names of environments to their Pythons, as JSON:
``{"vllm-0.24.0": "/path/bin/python", "speculators-0.9.0": ...}``. nox sets it from
compat.toml. Without it the tests that need such an environment are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from other_python import OtherPython

try:
    from hypothesis import settings
except ImportError:  # in vLLM's environments
    settings = None

ROOT = Path(__file__).parent.parent
VARIABLE = "SPECSHIM_TEST_ENVS"
FUZZ = "SPECSHIM_TEST_EXAMPLES"

# A run of CI tries the same examples each time, so that it says something about the
# change. New ones, and many, are `nox -s fuzz`: what it finds becomes an @example.
if settings is not None:
    examples = int(os.environ.get(FUZZ, "100"))
    settings.register_profile(
        "specshim", derandomize=FUZZ not in os.environ, max_examples=examples
    )
    settings.load_profile("specshim")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with this tree installed, metadata included."""
    target = tmp_path_factory.mktemp("site")
    uv = shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "uv", "pip"]
    subprocess.run(
        [*pip, "install", "-q", "--python", sys.executable, "--target", target, ROOT],
        check=True,
    )
    return target


@pytest.fixture(scope="session")
def here(site: Path) -> OtherPython:
    """This Python with the installed specshim in front, in fresh processes."""
    return OtherPython("here", sys.executable, {"PYTHONPATH": str(site)})


@pytest.fixture(scope="session")
def environment(request: pytest.FixtureRequest) -> Callable[[str], OtherPython]:
    """The Python of the environment with this name, with specshim importable."""
    known: dict[str, OtherPython] = {}
    shared = request.getfixturevalue("tmp_path_factory").getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def get(name: str) -> OtherPython:
        if VARIABLE not in os.environ:
            pytest.skip(f"{VARIABLE} is not set (nox -s tests sets it)")
        pythons = json.loads(os.environ[VARIABLE])
        if name not in pythons:
            pytest.fail(f"{VARIABLE} has no {name}; it has {', '.join(pythons)}")
        if name not in known:
            bare = OtherPython(name, pythons[name])
            found = bare.run("-c", "import specshim.plugin")
            # What vLLM finds out about a model, in a process of its own, is kept by
            # the model's name: releases that share a cache undo each other's.
            overlay = {"VLLM_CACHE_ROOT": str(shared / "vllm-cache" / name)}
            if found.returncode:
                overlay["PYTHONPATH"] = str(request.getfixturevalue("site"))
            known[name] = OtherPython(name, pythons[name], overlay)
        return known[name]

    return get
