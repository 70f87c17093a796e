"""A headless Chromium, spoken to over its debugging port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

create_connection = pytest.importorskip("websocket").create_connection

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
WAIT_S = 60


def chromium() -> str:
    """The program; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            "no headless Chromium is installed (Debian: chromium-headless-shell)"
        )
    return found


class Tab:
    """One tab; ``evaluate`` runs JavaScript in it and returns its value."""

    def __init__(self, address: str) -> None:
        self._socket = create_connection(address, timeout=WAIT_S)
        self._calls = 0

    def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._calls:
                return answer["result"]

    def evaluate(self, code: str) -> Any:
        return self.call("Runtime.evaluate", expression=code)["result"].get("value")

    def until(self, code: str) -> Any:
        """The value of ``code`` once it is true in JavaScript."""
        end = time.monotonic() + WAIT_S
        while not (value := self.evaluate(code)):
            assert time.monotonic() < end, f"never true: {code}"
            time.sleep(0.1)
        return value


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with the context."""
    port_file = profile / "DevToolsActivePort"
    command = [chromium(), *OPTIONS, "--remote-debugging-port=0"]
    command += ["--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank"]
    # The program is a script: what it starts must end with it.
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        end = time.monotonic() + WAIT_S
        while not (port_file.is_file() and port_file.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            pages = [t for t in json.load(answer) if t["type"] == "page"]
        yield Tab(pages[0]["webSocketDebuggerUrl"])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
