"""hs_connectors' own code, as the installed wheel has it, or a sentence instead."""

from __future__ import annotations

import importlib
from typing import Any

from specshim._backends import lacking
from specshim.detect.versions import version_of
from specshim.tap.layers import TapRefused


def load(backend: str, module: str, *names: str) -> Any:
    """The module ``hs_connectors.<module>``, which must have ``names``.

    Functions are to be looked up in it at each call, so that a patch counts.

    Raises:
        TapRefused: it is not there, too old, or not as expected.
    """
    installed = version_of("hs_connectors")
    problem = lacking(backend, installed)
    if problem is not None:
        raise TapRefused(problem)
    try:
        found = importlib.import_module(f"hs_connectors.{module}")
    except ImportError as error:
        raise TapRefused(
            f"The backend {backend} cannot be imported from hs_connectors {installed} "
            f"({error}); install hs_connectors 0.9.0 next to vLLM."
        ) from error
    missing = [name for name in names if not hasattr(found, name)]
    if missing:
        raise TapRefused(
            f"The backend {backend} needs {', '.join(missing)} of "
            f"hs_connectors.{module}, which release {installed} lacks; install "
            "hs_connectors 0.9.0."
        )
    return found
