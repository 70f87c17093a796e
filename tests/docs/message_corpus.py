"""The sentences in a Python source, with … where values are filled in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

GAP = "…"
SHORTEST = 8  # shorter pieces between gaps prove nothing
# What stands before a message, or is filled into it, by other code.
_AROUND = re.compile(r"^(\w+(Error|Refused): |extract_hidden_states )")
_HEADS = ("Hidden states refused: ",)


def sentences(*sources: Path) -> Iterator[str]:
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sdr]", GAP, node.value)
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else GAP
                    for part in node.values
                )


def pieces(message: str) -> list[str]:
    """What of a message must be found, without the exception's name before it."""
    message = _AROUND.sub("", message.strip())
    for head in _HEADS:
        message = message.replace(head, head + GAP)
    found = (piece.strip(" '") for piece in re.split(r"…|\[\.\.\.\]", message))
    return [piece for piece in found if len(piece) >= SHORTEST]


def missing(message: str, corpus: list[str]) -> list[str]:
    return [p for p in pieces(message) if not any(p in text for text in corpus)]
