"""Sentences for people that hold what somebody else wrote: one line each."""

from __future__ import annotations


def one_line(text: str) -> str:
    """``text`` with every character that cannot be printed written as its escape.

    A file name, a key of a YAML file or a model's name may hold line ends, control
    characters and halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def in_lines(value: object, *names: str) -> None:
    """Make these fields of a frozen dataclass, sentences or tuples of them, lines.

    For its ``__post_init__``.
    """
    for name in names:
        said = getattr(value, name)
        if isinstance(said, tuple):
            object.__setattr__(value, name, tuple(map(one_line, said)))
        elif said is not None:
            object.__setattr__(value, name, one_line(said))
