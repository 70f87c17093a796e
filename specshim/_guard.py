"""The outermost guard of the command-line programs: one sentence, no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from specshim._sentences import one_line

UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130


def guarded(body: Callable[[], int]) -> int:
    """The exit status of ``body``; SPECSHIM_STRICT=1 lets its exceptions through."""
    if getattr(sys.stdout, "errors", None) == "strict":
        # A command may hold bytes that are no text; better shown escaped than not.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = body()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (| head); keep the interpreter from flushing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from specshim.patching import strict

        if strict():
            raise
        said = one_line(str(error))
        print(
            f"specshim: unexpected {type(error).__name__}: {said}. Run again with "
            "SPECSHIM_STRICT=1 to see where, and please report it with the output of "
            "`specshim doctor`.",
            file=sys.stderr,
        )
        return UNEXPECTED
