"""What the wheel holds, and that every way of installing gives the same package."""

from __future__ import annotations

import hashlib
import os
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


def test_two_builds_give_the_same_bytes(dist: Path, tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    shutil.copytree(tree, other, ignore=shutil.ignore_patterns("dist", "*.egg-info"))
    for path in other.rglob("*"):  # another checkout: other times, another umask
        os.utime(path, (1_700_000_000, 1_700_000_000))
        if path.is_file():
            path.chmod(0o664)
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    build = [uv, "build", "-q", "--python", sys.executable, str(other)]
    subprocess.run(build, check=True)

    def digests(folder: Path) -> dict[str, str]:
        found = [p for p in folder.iterdir() if p.suffix in (".whl", ".gz")]
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in found}

    assert len(digests(dist)) == 2
    assert digests(other / "dist") == digests(dist)


def test_the_version_stands_in_one_place(dist: Path, tree: Path) -> None:
    from specshim import __version__

    names = sorted(p.name for p in dist.iterdir() if p.suffix in (".whl", ".gz"))
    assert all(name.startswith(f"specshim-{__version__}") for name in names)
    holders = [
        path.relative_to(tree)
        for path in (*tree.glob("*.toml"), *tree.glob("*.py"), *tree.glob("s*/**/*.py"))
        if __version__ in path.read_text()
    ]
    assert holders == [Path("specshim/_version.py")]


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
