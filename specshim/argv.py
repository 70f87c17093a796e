"""vLLM's command line: what an argument list says, and the list with changes in it.

Reads as vLLM's FlexibleArgumentParser does: dashes and underscores alike, options
abbreviated as far as argparse takes it, dotted keys gathered into one JSON value that
stands behind everything else, --config's YAML in front of it; the last value wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specshim._argv_options import BY_FIELD, OPTIONS, REWRITTEN, Option, find_option
from specshim._config_file import read_config_file
from specshim._plan_types import REMOVE, Change


@dataclass(frozen=True)
class Reading:
    """What an argument list says about the options in OPTIONS.

    ``options`` is keyed by field and holds parsed values. ``spans`` are the token
    ranges, flag and value, that an option takes up on the command line; options of
    a --config file are in ``from_file``. ``problems`` are sentences: nothing should
    be started. ``notes`` are sentences worth reading.
    """

    tokens: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    spans: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    from_file: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rewriting:
    """An argument list with changes in it, or ``problems`` that forbid them."""

    tokens: tuple[str, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Occurrence:
    option: Option
    value: Any
    span: tuple[int, int]
    dotted: str | None = None  # the key before the first dot, as written
    in_file: bool = False


def read_argv(tokens: Sequence[str], *, ignore_false_in_file: bool = False) -> Reading:
    """Read vLLM's arguments. Opens the file of --config, and nothing else.

    Args:
        tokens: the arguments after ``serve MODEL``.
        ignore_false_in_file: vLLM before 0.29, where ``option: false`` in a
            --config file has no effect.
    """
    problems: list[str] = []
    notes: list[str] = []
    occurrences: list[_Occurrence] = []
    path = _config_path(tokens, problems, notes)
    if path is not None:
        written, problem = read_config_file(path, ignore_false=ignore_false_in_file)
        problems += [problem] if problem else []
        occurrences += _occurrences(written, problems, in_file=True)
    occurrences += _occurrences(tokens, problems, in_file=False)

    options: dict[str, Any] = {}
    spans: dict[str, list[tuple[int, int]]] = {}
    for found in occurrences:
        if not found.in_file:
            spans.setdefault(found.option.field, []).append(found.span)
        if found.dotted is None:
            options[found.option.field] = found.value
    for option, value in _dotted_values(occurrences):
        options[option.field] = value
    _judge_repetitions(occurrences, problems, notes)
    return Reading(
        tokens=tuple(tokens),
        options=options,
        spans={name: tuple(ranges) for name, ranges in spans.items()},
        from_file=frozenset(f.option.field for f in occurrences if f.in_file),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def rewrite_argv(reading: Reading, changes: Iterable[Change]) -> Rewriting:
    """The arguments with each change made once.

    A changed option stands where the user first wrote it; a new option with a value
    stands in front, a new flag at the end. All other tokens keep bytes and order.
    """
    replaced: dict[int, list[str]] = {}
    dropped: set[int] = set()
    front: list[str] = []
    back: list[str] = []
    problems: list[str] = []
    for change in changes:
        spans = reading.spans.get(change.option, ())
        for start, stop in spans:
            dropped.update(range(start, stop))
        if change.value is REMOVE:
            if change.option in reading.from_file:
                problems.append(
                    f"{change.option} in the --config file has to go "
                    f"({change.why}); remove it there."
                )
        elif spans:
            replaced[spans[0][0]] = render(change.option, change.value)
        elif isinstance(change.value, bool):
            back += render(change.option, change.value)
        else:
            front += render(change.option, change.value)
    tokens = list(front)
    for index, token in enumerate(reading.tokens):
        if index in dropped:
            tokens += replaced.get(index, [])
        else:
            tokens.append(token)
    return Rewriting(tuple(tokens + back), tuple(problems))


def render(option: str, value: Any) -> list[str]:
    """One option as command-line arguments."""
    flag = "--" + option.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag[2:]]
    known = BY_FIELD.get(option)
    if known is not None and known.written:
        flag = known.written
    return [flag, value if isinstance(value, str) else json.dumps(value)]


def _config_path(
    tokens: Sequence[str], problems: list[str], notes: list[str]
) -> str | None:
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


def _occurrences(
    tokens: Sequence[str], problems: list[str], *, in_file: bool
) -> list[_Occurrence]:
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
            found.append(_Occurrence(option, yes, (start, index), in_file=in_file))
            continue
        if not equals:
            if index == len(tokens) or (not dot and _is_flag(tokens[index])):
                if option.lone:
                    span = (start, index)
                    found.append(_Occurrence(option, True, span, in_file=in_file))
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
            _Occurrence(
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


def _dotted_values(
    occurrences: Sequence[_Occurrence],
) -> list[tuple[Option, dict[str, Any]]]:
    """Dotted keys gathered per spelling, in the order of first appearance."""
    gathered: dict[str, tuple[Option, dict[str, Any]]] = {}
    for found in occurrences:
        if found.dotted is None:
            continue
        _, values = gathered.setdefault(found.dotted, (found.option, {}))
        path, value = found.value
        for key in reversed(path):
            value = {key: value}
        _merge(values, value)
    return list(gathered.values())


def _merge(into: dict[str, Any], update: Mapping[str, Any]) -> None:
    for key, value in update.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            into[key] = old + value
        else:
            into[key] = value


def _judge_repetitions(
    occurrences: Sequence[_Occurrence], problems: list[str], notes: list[str]
) -> None:
    for option in OPTIONS:
        ours = [found for found in occurrences if found.option is option]
        dotted = {found.dotted for found in ours if found.dotted is not None}
        plain = [found for found in ours if found.dotted is None]
        overridden = all(found.in_file for found in plain) and not any(
            found.in_file for found in ours if found.dotted is not None
        )
        if dotted and (plain or len(dotted) > 1):
            mixed = not overridden or len(dotted) > 1
            sentence = (
                f"{option.flag} is given both whole and with dotted keys, and vLLM "
                "keeps only the dotted ones; write it in one form."
                if mixed
                else f"{option.flag} of the --config file is replaced, not merged, by "
                "the dotted keys on the command line."
            )
            refused = mixed and option.field in REWRITTEN
            (problems if refused else notes).append(sentence)
        elif len(plain) > 1 and any(f.value != plain[-1].value for f in plain):
            notes.append(
                f"{option.flag} is given {len(plain)} times; vLLM takes the last."
            )
