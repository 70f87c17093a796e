"""An argument list of vLLM's taken apart: which tokens give which option a value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specshim._argv_options import REWRITTEN, Option, find_option


@dataclass(frozen=True)
class Occurrence:
    """One option as it is given once, in the tokens of the range ``span``."""

    option: Option
    value: Any
    span: tuple[int, int]
    dotted: str | None = None  # the key before the first dot, as written
    in_file: bool = False


def config_path(
    tokens: Sequence[str], problems: list[str], notes: list[str]
) -> str | None:
    """The file of --config; what is wrong with it goes into problems and notes."""
    if any(token.startswith("--config=") for token in tokens):
        notes.append(
            "vLLM does not read --config=FILE; write --config FILE with a space."
        )
    places = [index for index, token in enumerate(tokens) if token == "--config"]
    if not places:
        return None
    if len(places) > 1:
        problems.append("--config is given more than once; vLLM takes one file.")
    elif places[0] + 1 == len(tokens):
        problems.append("--config has no file name; write --config FILE.yaml.")
    else:
        return tokens[places[0] + 1]
    return None


def read_tokens(
    tokens: Sequence[str], problems: list[str], *, in_file: bool
) -> list[Occurrence]:
    """Every option of OPTIONS in ``tokens``; what is wrong goes into problems."""
    found = []
    index = 0
    while index < len(tokens):
        start, token = index, tokens[index]
        index += 1
        left, equals, value = token.partition("=")
        key, dot, _ = left.partition(".")
        match = find_option(key) if token.startswith("-") else None
        if match is None:
            continue
        option, yes = match
        if dot and option.kind != "json":
            problems.append(f"{option.flag} takes no keys: {left}.")
            continue
        if option.kind == "bool":
            if equals:
                problems.append(
                    f"{key} takes no value ({token}); write {option.flag} or "
                    f"--no-{option.flag[2:]}."
                )
            found.append(Occurrence(option, yes, (start, index), in_file=in_file))
            continue
        if not equals:
            if index == len(tokens) or (not dot and _is_flag(tokens[index])):
                if option.lone:
                    span = (start, index)
                    found.append(Occurrence(option, True, span, in_file=in_file))
                else:
                    problems.append(f"{token} has no value.")
                continue
            value = tokens[index]
            index += 1
        parsed: Any = value
        if dot:
            parsed = _dotted_value(left, value)
        else:
            parsed = _plain_value(option, value, problems)
        found.append(
            Occurrence(
                option,
                parsed,
                (start, index),
                dotted=key.replace("_", "-") if dot else None,
                in_file=in_file,
            )
        )
    return found


def _is_flag(token: str) -> bool:
    """Whether argparse takes the token for an option and not for a value."""
    if not token.startswith("-") or " " in token:
        return False
    return not token[1:].replace(".", "", 1).isdecimal() and token != "-"


def _plain_value(option: Option, text: str, problems: list[str]) -> Any:
    if option.kind == "json":
        if text in ("", "None"):
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            if option.field in REWRITTEN:
                problems.append(
                    f"{option.flag} is not valid JSON: {_shortened(text)}; "
                    "quote it for the shell as one argument."
                )
            return text
    if option.kind == "int":
        try:
            return int(text)
        except ValueError:
            return text
    return text


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _dotted_value(key: str, text: str) -> tuple[list[str], Any]:
    """Path and value of ``--option.a.b VALUE``; ``a.b+`` names a list's items."""
    if key.endswith("+"):
        return key[:-1].split(".")[1:], text.split(",")
    path = key.split(".")[1:]
    try:
        return path, json.loads(text)
    except (ValueError, RecursionError):
        return path, text
