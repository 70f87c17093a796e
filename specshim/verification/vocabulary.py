"""Which token ids a random prompt may hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specshim.verification.collect import CouldNotTell


def plain_token_ids(config: Any, model: str) -> list[int]:
    """Ids of the model's vocabulary that mean text: no special or placeholder ids.

    Special are the ids that the configuration names in its ``*token_id*`` fields,
    at any depth, and those that the tokenizer's files list as added.

    Args:
        config: as transformers reads it.
        model: its folder; for a hub id the tokenizer's files are not looked at.

    Raises:
        CouldNotTell: no id is left.
    """
    size = getattr(config.get_text_config(decoder=True), "vocab_size", None)
    if not isinstance(size, int):
        raise CouldNotTell(f"The configuration of {model} names no vocabulary size.")
    listed, added = _tokenizer_ids(Path(model))
    if listed:
        size = min(size, max(listed) + 1)
    special = added | set(_named_ids(config.to_dict()))
    ids = [token_id for token_id in range(size) if token_id not in special]
    if not ids:
        raise CouldNotTell(f"The vocabulary of {model} holds special ids only.")
    return ids


def _named_ids(value: Any, name: str = "") -> Iterator[int]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named_ids(inner, str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _named_ids(inner, name)
    elif isinstance(value, int) and name.endswith(
        ("token_id", "token_index", "token_ids")
    ):
        yield value


def _tokenizer_ids(folder: Path) -> tuple[set[int], set[int]]:
    """All ids and the added ones in tokenizer.json; empty where unreadable."""
    try:
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        added = {int(entry["id"]) for entry in content.get("added_tokens", ())}
        vocabulary = content["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set(), set()
    if isinstance(vocabulary, Mapping):  # WordLevel, BPE
        return added | {int(token_id) for token_id in vocabulary.values()}, added
    return added | set(range(len(vocabulary))), added  # Unigram
