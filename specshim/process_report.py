"""What each process of a server has armed and applied, as files that doctor reads.

One small JSON file per process in a folder of the user's own: ``SPECSHIM_STATE_DIR``,
or ``specshim-UID`` in the folder for temporary files. Files outlive their process, so
that a run can be asked afterwards; a week later the next server sweeps them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from specshim import _serving
from specshim._version import __version__

VARIABLE: Final = "SPECSHIM_STATE_DIR"
KEPT_SECONDS: Final = 7 * 24 * 3600

INSPECTION: Final = "vllm.model_executor.models.registry"
"""What vLLM runs with ``python -m`` to look a model's class up, in a process that ends
at once; it loads the plugins and inherits the server's variables (0.17 to 0.33)."""


@dataclass(frozen=True)
class ProcessReport:
    """One process of a server that extracts.

    ``server`` is the pid of the process that configured it. ``server_started`` and
    ``started`` tell these processes from others of the same pid; ``written`` is in
    seconds since the epoch. ``patches``: state and reason by id, as in
    ``specshim.status()``.
    """

    server: int
    server_started: str
    route: str
    pid: int
    process: str  # multiprocessing's name of it: MainProcess, EngineCore, ...
    host: str
    started: str
    written: float
    specshim: str
    vllm: str | None
    patches: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def one_server(self) -> tuple[str, int, str]:
        """The same for all processes of one server on one host."""
        return self.host, self.server, self.server_started

    @property
    def is_running(self) -> bool | None:
        """None where it runs, or ran, on another host."""
        if self.host != socket.gethostname():
            return None
        return _serving.started(self.pid) == self.started != ""


def publish() -> None:
    """Write this process's report, if it is one of a server that extracts.

    Never raises for the file system's sake: a report is not worth a server.
    """
    server = _serving.server()
    if server is None or INSPECTION in sys.orig_argv:
        return
    try:
        folder = _own_folder(create=True)
        if folder is not None:
            _write(folder, _report(server))
    except OSError:
        return


def read_reports() -> tuple[ProcessReport, ...]:
    """All reports of this user's servers on this machine, the newest server last."""
    folder = _own_folder(create=False)
    found = [] if folder is None else list(_reports(folder))
    found.sort(key=lambda report: report.written)
    newest = {report.one_server: report.written for report in found}
    return tuple(sorted(found, key=lambda r: (newest[r.one_server], r.written)))


def sweep() -> None:
    """Remove the reports of processes that ended more than a week ago."""
    folder = _own_folder(create=False)
    if folder is None:
        return
    for report in _reports(folder):
        old = time.time() - report.written > KEPT_SECONDS
        if old and report.is_running is False:
            with suppress(OSError):
                (folder / _name(report)).unlink()


def _report(server: _serving.Server) -> ProcessReport:
    from specshim.patching import LEDGER

    version = getattr(sys.modules.get("vllm"), "__version__", None)
    return ProcessReport(
        server=server.pid,
        server_started=server.started,
        route=server.route,
        pid=os.getpid(),
        process=multiprocessing.current_process().name,
        host=socket.gethostname(),
        started=_serving.started(os.getpid()),
        written=time.time(),
        specshim=__version__,
        vllm=version,
        patches={
            patch_id: {"state": entry.state, "reason": entry.reason}
            for patch_id, entry in sorted(LEDGER.entries.items())
        },
        failures=dict(LEDGER.failures),
    )


def _name(report: ProcessReport) -> str:
    return f"{report.host}-{report.pid}.json"  # containers may share the folder


def _write(folder: Path, report: ProcessReport) -> None:
    path = folder / _name(report)
    fresh = path.with_suffix(f".{time.monotonic_ns()}.new")
    fresh.write_text(json.dumps(asdict(report)))
    fresh.replace(path)


def _reports(folder: Path) -> Iterator[ProcessReport]:
    known = ProcessReport.__dataclass_fields__
    for path in folder.glob("*.json"):
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            yield ProcessReport(**{k: v for k, v in data.items() if k in known})
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            continue  # written by another release of specshim, or gone meanwhile


def _own_folder(*, create: bool) -> Path | None:
    """The folder, None where it is missing or somebody else's.

    In a shared folder for temporary files anybody may have made one of that name:
    what is not a folder of ours with write access for us alone is not used.
    """
    named = os.environ.get(VARIABLE)
    default = Path(tempfile.gettempdir()) / f"specshim-{os.getuid()}"
    folder = Path(named) if named else default
    if create:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        found = folder.lstat() if not named else folder.stat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if ours and not found.st_mode & 0o022 else None
