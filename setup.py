"""Finds the packages: patches/ is the package specshim.patches (see pyproject.toml)."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["specshim", "specshim.*"]),
        "specshim.patches",
        *(f"specshim.patches.{name}" for name in find_packages("patches")),
    ]
)
