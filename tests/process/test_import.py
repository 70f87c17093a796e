"""import specshim: cheap, lonely, inert on request, and in any order."""

from __future__ import annotations

import statistics
from itertools import permutations
from pathlib import Path

import pytest
from other_python import OtherPython

HEAVY = "{'torch', 'vllm', 'transformers', 'speculators', 'hs_connectors'}"
MILLISECONDS = 30


def cumulative(python: OtherPython, code: str, names: set[str]) -> float:
    """Milliseconds of the imports of ``names``, as -X importtime measures them."""
    done = python.run("-X", "importtime", "-c", code)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stderr.splitlines() if "|" in line]
    top = [row for row in rows if row[2].strip() in names]
    assert {row[2].strip() for row in top} == names
    return sum(int(row[1]) for row in top) / 1000


def test_import_is_cheap(here: OtherPython) -> None:
    ours = [cumulative(here, "import specshim", {"specshim"}) for _ in range(5)]
    base = [
        cumulative(here, "import wrapt, packaging", {"wrapt", "packaging"})
        for _ in range(5)
    ]
    assert statistics.median(ours) < statistics.median(base) + MILLISECONDS


def test_import_and_planning_load_nothing_heavy(here: OtherPython) -> None:
    code = f"import sys, specshim, specshim.planning; print({HEAVY} & set(sys.modules))"
    assert here.evaluate(code) == "set()"


def test_works_where_nothing_else_is_installed(here: OtherPython) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import specshim;"
        "from specshim.plugin import register; register(); register();"
        "specshim.uninstall(); specshim.install();"
        "print(specshim.status()['watched'])"
    )
    site = here.variables["PYTHONPATH"]
    done = here.run("-I", "-S", "-c", code, site)
    assert done.stdout.strip() == "['hs_connectors', 'speculators', 'vllm']", (
        done.stderr
    )


def test_switched_off_it_is_inert(here: OtherPython) -> None:
    code = """
import sys
before = list(sys.meta_path)
import specshim, specshim.plugin
specshim.plugin.register()
specshim.install()
print(sys.meta_path == before, specshim.status()["active"])
"""
    assert here.evaluate(code, {"SPECSHIM": "0"}) == "True False"


# A stand-in with the one function that the reroute wraps: the orders are what is
# tested here, and vLLM itself takes ten seconds to import (test_in_vllm.py).
ARG_UTILS = """
class EngineArgs:
    def create_engine_config(self, usage_context=None, headless=False):
        return "config"
class AsyncEngineArgs(EngineArgs):
    pass
"""
STEPS = {
    "specshim": "import specshim",
    "upstream": "import vllm.engine.arg_utils",
    "uninstall": "import specshim; specshim.uninstall()",
    "install": "import specshim; specshim.install()",
}
VERDICT = """
import sys
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
assert EngineArgs().create_engine_config() == "config"
assert "create_engine_config" not in vars(AsyncEngineArgs)
patched = hasattr(vars(EngineArgs)["create_engine_config"], "__wrapped__")
watching = any("specshim" in type(finder).__module__ for finder in sys.meta_path)
print(patched, watching)
"""


@pytest.fixture(scope="module")
def stand_in(
    here: OtherPython, tmp_path_factory: pytest.TempPathFactory
) -> OtherPython:
    folder = tmp_path_factory.mktemp("stand_in")
    (folder / "vllm" / "engine").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("__version__ = '0.32.0'\n")
    (folder / "vllm" / "engine" / "__init__.py").touch()
    (folder / "vllm" / "engine" / "arg_utils.py").write_text(ARG_UTILS)
    path = f"{here.variables['PYTHONPATH']}:{folder}"
    return OtherPython("stand-in", here.python, {"PYTHONPATH": path})


@pytest.mark.parametrize("order", list(permutations(STEPS)), ids=" > ".join)
def test_any_order_of_import_install_and_uninstall(
    stand_in: OtherPython, order: tuple[str, ...]
) -> None:
    code = "\n".join(STEPS[step] for step in order) + VERDICT
    on = order.index("install") > order.index("uninstall")
    assert stand_in.evaluate(code) == f"{on} {on}"


def test_uninstall_restores_the_very_function(stand_in: OtherPython) -> None:
    code = """
from vllm.engine.arg_utils import EngineArgs
before = EngineArgs.create_engine_config
import specshim
assert EngineArgs.create_engine_config is not before
specshim.uninstall()
print(EngineArgs.create_engine_config is before)
"""
    assert stand_in.evaluate(code) == "True"


@pytest.mark.parametrize("call", ["specshim.install()", "specshim.plugin.register()"])
def test_a_refused_hook_stops_a_strict_process_after_the_import(
    here: OtherPython, tmp_path: Path, call: str
) -> None:
    (tmp_path / "vllm" / "engine").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '0.32.0'\n")
    (tmp_path / "vllm" / "engine" / "__init__.py").touch()
    changed = ARG_UTILS.replace("usage_context", "usage")
    (tmp_path / "vllm" / "engine" / "arg_utils.py").write_text(changed)
    path = f"{here.variables['PYTHONPATH']}:{tmp_path}"
    code = (
        "import vllm.engine.arg_utils, specshim, specshim.plugin\n"
        f"print('imported', flush=True)\n{call}\nprint('went on')"
    )
    strict = {"PYTHONPATH": path, "SPECSHIM_STRICT": "1"}
    done = here.run("-c", code, variables=strict)
    assert (done.returncode, done.stdout) == (1, "imported\n")
    assert "vLLM will be stopped" in done.stderr
    assert "PatchRefused: vllm 0.32.0 is not what reroute" in done.stderr
    for arguments, said in ([], 0), (['{"method": "extract_hidden_states"}'], 1):
        lenient = here.run("-c", code, *arguments, variables={"PYTHONPATH": path})
        assert lenient.stdout == "imported\nwent on\n"
        assert lenient.stderr.count("specshim: reroute REFUSED") == said


def test_command_line_from_any_folder(here: OtherPython, tmp_path: Path) -> None:
    done = here.run("-m", "specshim", "--version", cwd=tmp_path)
    assert done.stdout.startswith("specshim ")
    assert here.run("-m", "specshim", "no-such-command").returncode == 2
