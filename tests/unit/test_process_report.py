"""Reports of a server's processes: written, read, swept, and only where they may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from specshim import _serving, process_report
from specshim.commands.doctor import collect, render

PUBLISH = """
from specshim import _serving, process_report
_serving.announce('cache')
process_report.publish()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(process_report.VARIABLE, str(tmp_path / "state"))
    monkeypatch.delenv(_serving.VARIABLE, raising=False)
    return tmp_path / "state"


def ended_process() -> int:
    """The pid of a process that has reported and ended."""
    process = subprocess.Popen([sys.executable, "-c", PUBLISH])
    assert process.wait(60) == 0
    return process.pid


def test_nothing_is_written_where_nothing_is_extracted(folder: Path) -> None:
    process_report.publish()
    assert not folder.exists()
    assert process_report.read_reports() == ()


def test_a_process_that_looks_a_model_up_is_no_part_of_a_server(
    folder: Path, tmp_path: Path
) -> None:
    *packages, module = process_report.INSPECTION.split(".")
    home = tmp_path.joinpath(*packages)
    home.mkdir(parents=True)
    (home / f"{module}.py").write_text(PUBLISH)
    run = [sys.executable, "-m", process_report.INSPECTION]
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environ = {**os.environ, "PYTHONPATH": paths}
    assert subprocess.run(run, env=environ, timeout=60).returncode == 0
    assert not folder.exists()
    run = [sys.executable, str(home / f"{module}.py")]  # the same code, by its path
    assert subprocess.run(run, env=environ, timeout=60).returncode == 0
    assert len(list(folder.iterdir())) == 1


def test_a_running_and_an_ended_process_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = ended_process()
    monkeypatch.setenv(_serving.VARIABLE, f"tap:{os.getpid()}")
    process_report.publish()
    ended, here = process_report.read_reports()
    assert (ended.pid, ended.route, ended.is_running) == (pid, "cache", False)
    assert (here.pid, here.route, here.is_running) == (os.getpid(), "tap", True)
    text = render(collect())
    assert f"server {pid}, process {pid} MainProcess: ended, route cache" in text
    assert f"server {os.getpid()}, process {os.getpid()} MainProcess: running" in text


def test_a_week_after_its_end_a_report_is_swept(folder: Path) -> None:
    ended_process()
    process_report.sweep()
    (file,) = folder.glob("*.json")
    data = json.loads(file.read_text())
    data["written"] -= process_report.KEPT_SECONDS + 1
    file.write_text(json.dumps(data))
    process_report.sweep()
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    ended_process()
    assert list(folder.iterdir()) == []
    assert process_report.read_reports() == ()


def test_no_room_for_a_report_stops_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file where the folder should be")
    monkeypatch.setenv(_serving.VARIABLE, f"tap:{os.getpid()}")
    process_report.publish()
    process_report.sweep()
    assert process_report.read_reports() == ()


@pytest.mark.parametrize("planted", ["link", "foreign", "file", "dangling"])
def test_what_somebody_else_planted_in_a_shared_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.delenv(process_report.VARIABLE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(_serving.VARIABLE, f"tap:{os.getpid()}:")
    ours, place = tmp_path / "ours", tmp_path / f"specshim-{os.getuid()}"
    ours.mkdir(mode=0o700)
    if planted == "foreign":
        place.mkdir(mode=0o700)
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        place.rename(tmp_path / "specshim-4242")
    elif planted == "file":
        place.write_text("x")
    else:
        place.symlink_to(ours if planted == "link" else tmp_path / "nowhere")
    process_report.publish()
    assert process_report.read_reports() == ()
    left = {p.name for p in tmp_path.rglob("*")}
    assert not [name for name in left if name.endswith((".json", ".new"))]
    assert "nowhere" not in left
