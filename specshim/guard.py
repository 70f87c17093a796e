"""Refuses samples of hidden states that cannot be right, before anybody trains on them.

``import specshim`` before speculators puts this into its loading of samples. A training
loop of one's own calls :func:`check`::

    from specshim import guard

    expected = guard.Expected("Qwen/Qwen3-8B", layer_ids=(2, 18, 33, 36))
    guard.check(sample["hidden_states"], sample["token_ids"], expected=expected)
"""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from os import PathLike
from typing import Any

from specshim import _sample_identity

__all__ = [
    "BadSample",
    "Expected",
    "check",
    "check_file",
    "check_metadata",
    "current",
    "expecting",
    "read_metadata",
]

_MAX_HEADER = 100 << 20  # bytes; safetensors' own limit


class BadSample(ValueError):
    """A sample that must not be trained on; the text is one sentence that says why."""


@dataclass(frozen=True)
class Expected:
    """What a trainer knows about its samples; what is None is not compared.

    Args:
        model: name or path of the model whose states these are, or the name that the
            server gives it (``--served-model-name``).
        layer_ids: of each slot of ``hidden_states``, in order, numbered as vLLM does
            (0 the embedding, ``num_hidden_layers`` the last layer's output); None in
            place of an id stands for any.
        hidden_size: values per row.
        silent_tokens: ids of tokens whose embedding is zero (a padding token, say).
    """

    model: str | None = None
    layer_ids: tuple[int | None, ...] | None = None
    hidden_size: int | None = None
    silent_tokens: frozenset[int] = frozenset()


def check(
    hidden_states: Any,
    token_ids: Any,
    *,
    prompt: Sequence[int] | None = None,
    expected: Expected | None = None,
    metadata: Mapping[str, str] | None = None,
    thorough: bool = False,
) -> None:
    """Refuse a sample that cannot be right.

    Unless ``thorough``, of a sample of more than 1 MiB every row of every layer is
    probed and few are read whole; so one NaN among finite neighbours can be missed, a
    NaN row cannot.

    Args:
        hidden_states: tensor [tokens, layers, hidden size] of a float type, or a
            sequence of such tensors to be read side by side along the layers.
        token_ids: tensor [tokens], the ids that the states were computed from; empty
            for prompt embeddings.
        prompt: the ids that they should have been computed from; None: not compared.
        expected: what the trainer knows; None takes that of :func:`expecting`.
        metadata: header metadata of the file, as :func:`read_metadata` gives it.
        thorough: read every value, whatever the size.

    Raises:
        BadSample: one sentence that says which row, and why.
    """
    from specshim import _sample_rows

    expected = current() if expected is None else expected
    check_metadata(metadata or {}, expected)
    pieces = hidden_states if isinstance(hidden_states, Sequence) else [hidden_states]
    named = _sample_identity.layer_ids_of(metadata or {})
    layer_ids = expected.layer_ids if named is None else named
    who = "trainer expects" if named is None else "header names"
    problem = _sample_rows.shape_problem(
        pieces, token_ids, prompt, layer_ids, expected.hidden_size, who
    ) or _sample_rows.row_problem(
        pieces, token_ids, layer_ids, expected.silent_tokens, thorough
    )
    if problem:
        raise BadSample(f"Hidden states refused: {problem}.")


def check_file(
    path: str | PathLike[str],
    *,
    prompt: Sequence[int] | None = None,
    expected: Expected | None = None,
    thorough: bool = False,
) -> None:
    """:func:`check` on a complete safetensors file, its header metadata included.

    Raises:
        BadSample: as for ``check``.
        OSError: the file cannot be opened.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        sample = load_file(path)
    except SafetensorError as error:
        raise BadSample(
            f"Hidden states refused: {path} is damaged ({error})."
        ) from None
    missing = {"hidden_states", "token_ids"} - sample.keys()
    if missing:
        names = ", ".join(sorted(missing))
        raise BadSample(f"Hidden states refused: {path} holds no {names}.")
    check(
        sample["hidden_states"],
        sample["token_ids"],
        prompt=prompt,
        expected=expected,
        metadata=read_metadata(path),
        thorough=thorough,
    )


def check_metadata(metadata: Mapping[str, str], expected: Expected) -> None:
    """Refuse a file whose header contradicts the trainer; no header, no refusal.

    Names that differ and may mean one model all the same are a warning, shown once.

    Raises:
        BadSample: other layers, or certainly another model.
    """
    problem = _sample_identity.contradiction(
        metadata, expected.model, expected.layer_ids
    )
    if problem:
        raise BadSample(f"Hidden states refused: {problem}.")
    doubt = _sample_identity.doubt(metadata, expected.model)
    if doubt:
        # The text is the same for each file, so Python shows it once.
        warnings.warn(
            f"specshim: {doubt}; the names alone do not say whether these are one "
            "model, so the samples are taken.",
            stacklevel=2,
        )


def read_metadata(path: str | PathLike[str]) -> dict[str, str]:
    """The header metadata of a safetensors file; empty where there is none.

    Reads a few hundred bytes and imports nothing. specshim's files and the stock ones
    of its cache route name ``model``, ``served_model_name`` and ``layer_ids`` (JSON
    lists) there.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        header = file.read(size) if size <= _MAX_HEADER else b""
    try:
        found = json.loads(header).get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError):
        return {}  # not safetensors; whoever loads it will say so
    known = found if isinstance(found, dict) else {}
    return {key: value for key, value in known.items() if isinstance(value, str)}


def current() -> Expected:
    """What the innermost :func:`expecting` around the caller expects."""
    return _EXPECTED.get() or Expected()


@contextmanager
def expecting(expected: Expected) -> Iterator[None]:
    """Within the block, samples are held against ``expected``."""
    token = _EXPECTED.set(expected)
    try:
        yield
    finally:
        _EXPECTED.reset(token)


def expect(expected: Expected) -> None:
    """Change what the :func:`expecting` around the caller expects, up to its end."""
    _EXPECTED.set(expected)


_EXPECTED: ContextVar[Expected | None] = ContextVar("expected", default=None)
