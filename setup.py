"""Finds the packages: patches/ is the package specshim.patches (see pyproject.toml).

And makes builds reproducible: the same tree gives the same bytes, always.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

EPOCH = os.environ.setdefault("SOURCE_DATE_EPOCH", "946684800")  # the wheel's, too


class ReproducibleSdist(sdist):
    """Writes the archive with sorted members, one owner, one time, two modes."""

    def make_archive(
        self,
        base_name: Any,
        format: str,
        root_dir: Any = None,
        base_dir: str | None = None,
        owner: str | None = None,
        group: str | None = None,
    ) -> str:
        if format != "gztar" or base_dir is None:
            made: str = super().make_archive(
                base_name, format, root_dir, base_dir, owner, group
            )
            return made
        path = f"{base_name}.tar.gz"
        members = sorted(p for p in Path(base_dir).rglob("*") if p.is_file())
        with (
            open(path, "wb") as raw,
            gzip.GzipFile("", "wb", 9, raw, mtime=int(EPOCH)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for member in members:
                tar.add(member, filter=_normal)
        return path


def _normal(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = int(EPOCH)
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


setup(
    cmdclass={"sdist": ReproducibleSdist},
    packages=[
        *find_packages(include=["specshim", "specshim.*"]),
        "specshim.patches",
        *(f"specshim.patches.{name}" for name in find_packages("patches")),
    ],
)
