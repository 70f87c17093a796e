"""The one guard that swallows exceptions: ours must not stop somebody's import."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from specshim.patching.ledger import FAILED, LEDGER

logger = logging.getLogger("vllm.specshim")


def strict() -> bool:
    """Whether SPECSHIM_STRICT=1 asks for exceptions in place of warnings."""
    return os.environ.get("SPECSHIM_STRICT") == "1"


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Record an exception of the block and log one WARNING; raise it when strict.

    ``what`` is the id of a patch, or names the hook; a second failure of the same
    thing is recorded, not logged again.
    """
    try:
        yield
    except Exception as error:
        if strict():
            raise
        reason = f"{type(error).__name__}: {error}"
        known = what in LEDGER.failures
        LEDGER.failures[what] = reason
        LEDGER.note(what, FAILED, reason)
        if not known:
            logger.warning(
                "specshim: %s failed and was left out (%s). "
                "SPECSHIM_STRICT=1 raises the error.",
                what,
                reason,
            )
