"""What the wheel holds, and that every way of installing gives the same package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROBE = """
import importlib.metadata as m, specshim.patches.vllm.abort_before_schedule as p
points = m.entry_points(group="vllm.general_plugins")
print(p.PATCH.id, [point.value for point in points if point.name == "specshim"])
"""
EXPECTED = "abort-before-schedule ['specshim.plugin:register']"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources: building writes beside them."""
    copy = tmp_path_factory.mktemp("tree") / "specshim"
    junk = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=junk)
    return copy


@pytest.fixture(scope="module")
def dist(tree: Path) -> Path:
    build = [sys.executable, "-m", "build", "-q", "--installer", "uv", str(tree)]
    subprocess.run(build, check=True)
    return tree / "dist"


def test_wheel_holds_the_tree_and_nothing_else(dist: Path, tree: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    own = {str(p.relative_to(tree)) for p in (tree / "specshim").rglob("*.py")}
    patches = {
        f"specshim/{p.relative_to(tree)}" for p in (tree / "patches").rglob("*.py")
    }
    assert packed == own | patches | {"specshim/py.typed"}


def test_twine_accepts_both_archives(dist: Path) -> None:
    archives = [str(p) for p in dist.iterdir()]
    assert len(archives) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *archives],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("how", ["folder", "editable", "wheel", "sdist"])
def test_install(how: str, dist: Path, tree: Path, tmp_path: Path) -> None:
    what = {
        "folder": [str(tree)],
        "editable": ["-e", str(tree)],
        "wheel": [str(next(dist.glob("*.whl")))],
        "sdist": [str(next(dist.glob("*.tar.gz")))],
    }[how]
    python = str(tmp_path / "venv" / "bin" / "python")
    uv = [shutil.which("uv") or str(Path(sys.executable).parent / "uv"), "-q"]
    subprocess.run(
        [*uv, "venv", "--python", sys.executable, tmp_path / "venv"], check=True
    )
    subprocess.run([*uv, "pip", "install", "--python", python, *what], check=True)
    done = subprocess.run(
        [python, "-c", PROBE], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == EXPECTED, done.stderr


def test_patches_by_its_bare_name_is_refused_with_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import patches"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "import this package as specshim.patches" in done.stderr


def test_a_checkout_on_the_path_works_without_installation() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import specshim.patches.vllm as p; print(p.__name__)"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.strip() == "specshim.patches.vllm", done.stderr
