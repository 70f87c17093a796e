"""Correct and fast hidden-state extraction on stock vLLM and speculators."""

from specshim._version import __version__

__all__ = ["__version__"]
