"""A real Mooncake master on loopback, from the wheel of an environment."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import environment

from specshim.server_process import free_port

LOCAL = {"MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1"}
_FIND = "import mooncake, mooncake.store; print(mooncake.__path__[0])"


@contextmanager
def master(python: str, folder: Path) -> Iterator[str]:
    """Run the master; its address. Skips where its native libraries are missing."""
    found = subprocess.run([python, "-c", _FIND], capture_output=True, text=True)
    if "libibverbs" in found.stderr:
        pytest.skip("Mooncake needs libibverbs.so.1 (Debian: libibverbs1)")
    assert found.returncode == 0, found.stderr
    program = Path(found.stdout.strip()) / "mooncake_master"
    port, metrics = free_port(), free_port()
    command = [
        *(str(program), "--rpc_address=127.0.0.1", f"--rpc_port={port}"),
        *("--metrics_host=127.0.0.1", f"--metrics_port={metrics}"),
    ]
    with open(folder / "master.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(port, 60)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def wait_for(port: int, seconds: float) -> None:
    """Return once something listens on a port of this machine."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def run_beside(python: str, script: str, job: dict[str, Any]) -> None:
    """Run a script of this folder with ``job`` on its standard input."""
    done = subprocess.run(
        [python, str(Path(__file__).with_name(script))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment(**LOCAL),
    )
    assert done.returncode == 0, done.stderr[-3000:]


def read_all(
    python: str, address: str, answers: Sequence[dict[str, Any]], folder: Path
) -> list[Any]:
    """The samples that the real MooncakeTransfer of ``python`` reads; or their errors.

    They are gone from the store afterwards.
    """
    import torch

    out = folder / "samples.pt"
    job = {"master": address, "answers": list(answers), "out": str(out)}
    run_beside(python, "read_mooncake.py", job)
    samples: list[Any] = torch.load(out)
    return samples
