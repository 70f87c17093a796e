"""A process of another environment that runs one check after another.

Importing vLLM takes ten seconds and a check half of one, so all checks of a release
and a mode share a process. It runs as a script there, before specshim is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

CHECKS = Path(__file__).parent / "checks"


class Bench:
    """The other end: starts the process, hands it checks, reads what became of them."""

    def __init__(self, python: str, variables: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, __file__],
            env=dict(variables),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, check: str) -> dict[str, Any]:
        """The check's ``error``, "" where it passed, and the patches ``applied``."""
        commands, answers = self._process.stdin, self._process.stdout
        assert commands is not None
        assert answers is not None
        commands.write(f"{check}\n")
        commands.flush()
        answer = answers.readline()
        if answer:
            found: dict[str, Any] = json.loads(answer)
            return found
        self._process.wait()
        self._log.seek(0)
        end = f"the process ended with {self._process.returncode}"
        return {"error": f"{self._log.read()}\n{end}", "applied": []}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()


def serve(commands: IO[str], answers: IO[str]) -> None:
    """Run the checks that are named, a line each, and say what became of each."""
    import runpy
    import traceback

    for line in commands:
        error = ""
        try:
            runpy.run_path(str(CHECKS / f"{line.strip()}.py"), run_name="__main__")
        except SystemExit as end:
            error = str(end.code or "")
        except BaseException:
            error = traceback.format_exc()
        answer = {"error": error, "applied": applied()}
        print(json.dumps(answer), file=answers, flush=True)


def applied() -> list[str]:
    """The patches that are in place in this process."""
    if "specshim" not in sys.modules:
        return []
    import specshim

    entries = specshim.status()["patches"]
    return [name for name, entry in entries.items() if entry["state"] == "applied"]


def main() -> None:
    """In the other environment."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what checks and vLLM print is no answer
    sys.path[0] = str(CHECKS)
    sys.path.append(str(CHECKS.parents[1]))
    if os.environ.get("SPECSHIM") != "0":
        import specshim

        specshim.install()
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
