"""How commands say that they could not do what they were asked."""

from __future__ import annotations

import json
import sys

from specshim._sentences import one_line


def refuse(command: str, sentence: str, *, as_json: bool, status: int = 2) -> int:
    """Say ``sentence`` on stderr, under ``--json`` as an object on stdout, too."""
    said = one_line(sentence)
    if as_json:
        print(json.dumps({"error": said, "exit_code": status}, indent=2))
    print(f"specshim {command}: {said}", file=sys.stderr)
    return status
