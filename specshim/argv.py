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

from specshim._argv_options import BY_FIELD, OPTIONS, REWRITTEN, Option
from specshim._argv_tokens import Occurrence, config_path, read_tokens
from specshim._config_file import read_config_file
from specshim._plan_types import REMOVE, Change
from specshim._sentences import in_lines


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

    def __post_init__(self) -> None:
        in_lines(self, "problems", "notes")


@dataclass(frozen=True)
class Rewriting:
    """An argument list with changes in it, or ``problems`` that forbid them."""

    tokens: tuple[str, ...]
    problems: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        in_lines(self, "problems")


def read_argv(tokens: Sequence[str], *, ignore_false_in_file: bool = False) -> Reading:
    """Read vLLM's arguments. Opens the file of --config, and nothing else.

    Args:
        tokens: the arguments after ``serve MODEL``.
        ignore_false_in_file: vLLM before 0.29, where ``option: false`` in a
            --config file has no effect.
    """
    problems: list[str] = []
    notes: list[str] = []
    occurrences: list[Occurrence] = []
    path = config_path(tokens, problems, notes)
    if path is not None:
        written, problem = read_config_file(path, ignore_false=ignore_false_in_file)
        problems += [problem] if problem else []
        occurrences += read_tokens(written, problems, in_file=True)
    occurrences += read_tokens(tokens, problems, in_file=False)

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


def _dotted_values(
    occurrences: Sequence[Occurrence],
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
    occurrences: Sequence[Occurrence], problems: list[str], notes: list[str]
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
