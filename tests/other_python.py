"""A Python of another environment; not in conftest, of which there are several."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class OtherPython:
    """A Python of another environment, and the variables that it runs with."""

    name: str
    python: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, *more: Mapping[str, str]) -> dict[str, str]:
        """This process's variables without specshim's, then its own, then ``more``."""
        found = {k: v for k, v in os.environ.items() if not k.startswith("SPECSHIM")}
        for variables in (self.variables, *more):
            found.update(variables)
        return found

    def run(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        timeout: float = 600,
        cwd: str | Path = "/",
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python *arguments`` with output captured; never raises for its rc."""
        return subprocess.run(
            [self.python, *arguments],
            env=self.environment(variables or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
        )

    def evaluate(self, code: str, variables: Mapping[str, str] | None = None) -> str:
        """The stripped standard output of ``code``, which must succeed."""
        done = self.run("-c", code, variables=variables)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()
