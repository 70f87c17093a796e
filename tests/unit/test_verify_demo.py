"""The parts of the demo: which models, the server's life, progress, the table."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from standin import StandIn, models_folder, serving, tiny

from specshim import demo
from specshim.__main__ import main
from specshim.demo_models import choose_models
from specshim.detect import Environment
from specshim.progress import progress_to, time_left
from specshim.server_process import (
    ServerFailed,
    free_port,
    last_lines,
    running,
    wait_until_healthy,
)
from specshim.verify import VerifyOptions, verify

CHILDREN = """
import signal, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]])
Path(sys.argv[1]).write_text(str(child.pid))
if sys.argv[3] == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(0.1)
"""
SLEEPER = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(99)"
)
HEALTHY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody has reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def read_pid(path: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and path.read_text():
            return int(path.read_text())
        time.sleep(0.05)
    raise TimeoutError(path)


@pytest.mark.parametrize("manner", ["willing", "stubborn"])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_no_process_is_left(
    tmp_path: Path, manner: str, error: type[BaseException] | None
) -> None:
    note = tmp_path / "pid"
    command = [sys.executable, "-c", CHILDREN, str(note), SLEEPER, manner]
    try:
        with running(command, tmp_path / "log", os.environ, grace=1.0) as process:
            child = read_pid(note)
            assert alive(child)
            if error is not None:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        assert error is not None
    assert process.returncode is not None
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def test_no_process_is_left_after_sigterm(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from specshim.server_process import running\n"
        "with running(sys.argv[2:], Path(sys.argv[1]), os.environ, grace=1.0):\n"
        "    time.sleep(99)\n"
    )
    server = [sys.executable, "-c", CHILDREN, str(note), SLEEPER, "willing"]
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log"), *server]
    )
    child = read_pid(note)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 128 + signal.SIGTERM
    assert not alive(child)


def test_waits_until_healthy(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", HEALTHY, str(port)]
    with running(command, tmp_path / "log", os.environ, grace=4.0) as process:
        assert wait_until_healthy(process, f"http://127.0.0.1:{port}", 30) < 30


def test_a_server_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", "print('no such device'); raise SystemExit(3)"]
    url = f"http://127.0.0.1:{free_port()}"
    with (
        running(command, log, os.environ) as process,
        pytest.raises(ServerFailed, match="exit code 3"),
    ):
        wait_until_healthy(process, url, 30)
    assert last_lines(log) == ["no such device"]


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(99)"]
    waited: list[float] = []
    url = f"http://127.0.0.1:{free_port()}"
    with (
        running(command, tmp_path / "log", os.environ) as process,
        pytest.raises(ServerFailed, match=r"did not answer within 0\.6 s"),
    ):
        wait_until_healthy(process, url, 0.6, waited.append)
    assert waited == sorted(waited) != []


@pytest.mark.parametrize(
    ("version", "names", "left_out"),
    [
        ("0.32.0", ["gemma4", "qwen3_5"], 0),
        ("0.27.0rc1", ["gemma4", "qwen3_5"], 0),
        ("0.24.0", ["gemma4"], 1),
        ("0.20.1", ["gemma4"], 1),
        ("0.17.1", ["gemma3"], 1),
        ("0.21.1.dev45+g12ab", ["gemma4"], 1),
        ("unknown", ["gemma4", "qwen3_5"], 0),
    ],
)
def test_models_by_release(version: str, names: list[str], left_out: int) -> None:
    chosen, sentences = choose_models("both", Environment(vllm=version))
    assert chosen == names
    assert len(sentences) == left_out
    assert choose_models("llama", Environment(vllm=version)) == (["llama"], ())


def test_command_and_environment() -> None:
    command = demo.server_command(Path("/m"), Path("/s"), 1234, "bfloat16")
    launcher, _, engine = " ".join(command[1:]).partition(" -- ")
    assert launcher == (
        "-m specshim.launch_vllm /m --hidden-states-path /s --target-layer-ids 0 2 4 5"
    )
    assert "--port 1234 --dtype bfloat16" in engine
    given = demo.server_environment({"VLLM_CPU_KVCACHE_SPACE": "4", "A": "b"})
    assert given == {"VLLM_CPU_KVCACHE_SPACE": "4", "A": "b", "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    "flags",
    [
        ("demo", "--prompts", "0"),
        ("demo", "--prompts", "-3"),
        ("demo", "--timeout", "-1"),
        ("demo", "--timeout", "x"),
        ("verify", "--url", "u", "--model", "m", "--timeout", "0"),
        ("verify", "--url", "u", "--model", "m", "--file-timeout", "nan"),
    ],
)
def test_numbers_that_cannot_be(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(flags)
    assert stopped.value.code == 2
    assert "number" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", ["demo", "verify"])
def test_help_says_defaults_and_exit_status(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    printed = capsys.readouterr().out
    assert "(default: 12)" in printed
    statuses = printed.partition("exit status:")[2].splitlines()
    assert ["0", "right"] in [line.split() for line in statuses]
    assert ["1", "wrong"] in [line.split() for line in statuses]
    assert any(line.startswith("  2   could not tell") for line in statuses)


def test_a_cache_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Environment(vllm="0.32.0")
    monkeypatch.setattr(demo, "detect_environment", lambda: here)
    assert main(["demo", "--cache", "/proc/x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "The folder /proc/x cannot be made" in line


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert demo.default_cache() == Path("/c/specshim")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert demo.default_cache() == Path("/h/.cache/specshim")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_off_a_terminal_is_quiet() -> None:
    stream = io.StringIO()
    show = progress_to(stream)
    for done in range(4):
        show("requests", done, 3)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("done", "total", "seconds", "left"),
    [
        (0, 10, 5.0, ""),  # nothing is known yet
        (5, 10, 0.5, ""),
        (10, 10, 5.0, ""),
        (4, 10, 8.0, ", 12 s left"),
        (1, 100, 2.0, ", 3 min 18 s left"),
    ],
)
def test_the_time_that_is_left(
    done: int, total: int, seconds: float, left: str
) -> None:
    assert time_left(done, total, seconds) == left


def test_progress_on_a_terminal_redraws() -> None:
    stream = _Terminal()
    show = progress_to(stream)
    show("requests", 1, 2)
    show("requests", 2, 2)
    half, full = stream.getvalue().split("\r")[1:]
    assert half.startswith("[############------------]  50% requests")
    assert full.startswith("[########################] 100% requests")
    assert full.endswith("\n")


def test_table_and_json_of_results(tmp_path: Path) -> None:
    standin = StandIn(
        tiny("llama"), tmp_path, metadata={"layer_ids": "[0, 2, 4, 5, 8]"}
    )
    standin.corrupt = lambda number, states: states.roll(1, 0)
    with serving(standin):
        options = VerifyOptions(standin.url, tiny("llama"), prompts=2, max_length=9)
        report = verify(options)
    wrong = demo.DemoResult("gemma4", "a kind", "float32", "/m", 3.0, report)
    dead = demo.DemoResult(
        "qwen3_5", "", "bfloat16", "/m", failure="It died.", log="/l", log_end=("oops",)
    )
    lines = demo.render([wrong, dead], ["Something."])
    assert lines[1].split()[0] == "gemma4"
    assert lines[1].endswith("WRONG")
    assert lines[2].endswith("could not tell")
    assert lines[3] == "Left out: Something."
    assert any("rows are shifted" in line for line in lines)
    assert lines[-3:] == [
        "qwen3_5: It died.",
        "  | oops",
        "qwen3_5: the server's log is /l",
    ]
    content = json.loads(json.dumps(demo.results_json([wrong, dead], [], 1)))
    assert content["results"][0]["report"]["exit_code"] == 1
    assert content["results"][1]["report"] is None


def run_demo(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args(arguments))


def serve_with(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Let the demo find a vLLM, and start ``command MODEL STATES PORT DTYPE``."""

    def server_command(model: Path, states: Path, port: int, dtype: str) -> list[str]:
        return [sys.executable, *command, str(model), str(states), str(port), dtype]

    monkeypatch.setattr(demo, "detect_environment", lambda: Environment(vllm="0.32.0"))
    monkeypatch.setattr(demo, "server_command", server_command)


def test_whole_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    serve_with(monkeypatch, str(Path(__file__).with_name("standin.py")))
    cache = str(models_folder())
    assert run_demo("--model", "llama", "--prompts", "2", "--cache", cache) == 0
    output = capfd.readouterr()
    _, row = output.out.splitlines()
    assert row.split()[:2] == ["llama", "float32"]
    assert row.endswith("right")
    assert output.err == ""
    assert not list(tmp_path.glob("specshim-demo-*"))


def test_demo_whose_server_dies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    serve_with(monkeypatch, "-c", "raise SystemExit('no such device')")
    assert run_demo("--model", "llama", "--cache", str(models_folder())) == 2
    output = capfd.readouterr().out
    assert "llama: The server ended with exit code 1" in output
    assert "  | no such device" in output
    [log] = tmp_path.glob("specshim-demo-*/llama/server.log")
    assert f"the server's log is {log}" in output


def test_demo_without_vllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "detect_environment", Environment)
    assert run_demo() == 2
    error = capsys.readouterr().err
    assert "vLLM is not installed in this environment" in error
    assert demo.INSTALL_COMMAND in error
