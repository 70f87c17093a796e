"""A headless Chromium, spoken to over its debugging port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
        host, _, path = address.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self._socket = socket.create_connection((name, int(port)), timeout=WAIT_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._answers = self._socket.makefile("rb")
        while self._answers.readline().strip():
            pass
        self._calls = 0

    def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        body = json.dumps(message).encode()
        small = len(body) < 126
        size = (
            bytes([0x80 | len(body)])
            if small
            else b"\xfe" + struct.pack(">H", len(body))
        )
        self._socket.sendall(b"\x81" + size + bytes(4) + body)
        while True:
            answer = json.loads(self._frame())
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

    def _frame(self) -> bytes:
        _, size = self._answers.read(2)
        if size == 126:
            (size,) = struct.unpack(">H", self._answers.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._answers.read(8))
        return self._answers.read(size)


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with the context."""
    port_file = profile / "DevToolsActivePort"
    command = [chromium(), *OPTIONS, "--remote-debugging-port=0"]
    command += ["--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
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
        process.kill()
        process.wait()
