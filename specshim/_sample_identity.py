"""Whose states are these? What a file's header says, held against the trainer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence

_SNAPSHOT = re.compile(r"models--[^/]+--([^/]+)/snapshots/")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_QUANTISED = re.compile(
    r"([-_.](fp8|nvfp4|mxfp4|w\d+a\d+|int[48]|[48]bit|awq|gptq|bnb|gguf|mlx|quantized"
    r"|dynamic|block))+$"
)


def contradiction(
    metadata: Mapping[str, str],
    model: str | None,
    layer_ids: Sequence[int | None] | None,
) -> str | None:
    """What the header certainly says otherwise, as the end of a sentence, or None."""
    found = layer_ids_of(metadata)
    if found is not None and layer_ids is not None and not _fits(found, layer_ids):
        wanted = ["any" if i is None else i for i in layer_ids]
        return (
            f"the file holds layers {_listed(found)}, the trainer expects "
            f"{_listed(wanted)}"
        )
    if _same_as_one(metadata, model) is False:
        return _other_model(metadata, model)
    return None


def doubt(metadata: Mapping[str, str], model: str | None) -> str | None:
    """Of names that differ and need not mean two models, how they differ."""
    names = names_of(metadata)
    if not names or not model or _same_as_one(metadata, model) is not None:
        return None
    return _other_model(metadata, model)


def names_of(metadata: Mapping[str, str]) -> list[str]:
    """The model's name or path, and the names that the server gave it."""
    try:
        served = json.loads(metadata["served_model_name"])
    except (KeyError, TypeError, ValueError, RecursionError):
        served = []
    names = [metadata.get("model"), *(served if isinstance(served, list) else [])]
    return [name for name in names if isinstance(name, str) and name]


def _same_as_one(metadata: Mapping[str, str], model: str | None) -> bool | None:
    """As ``same_model``, for any of a header's names."""
    names = names_of(metadata)
    if not names or not model:
        return None
    verdicts = {same_model(name, model) for name in names}
    if True in verdicts:
        return True
    return None if None in verdicts else False


def _other_model(metadata: Mapping[str, str], model: str | None) -> str:
    first, *served = names_of(metadata)
    others = [name for name in dict.fromkeys(served) if name != first]
    also = f" (served as {_listed(others)})" if others else ""
    return f"the file holds states of {first}{also}, the trainer expects {model}"


def layer_ids_of(metadata: Mapping[str, str]) -> tuple[int, ...] | None:
    """The layer ids that a header names, None where it names none that can be read."""
    try:
        found = json.loads(metadata["layer_ids"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    if not isinstance(found, list) or any(type(i) is not int for i in found):
        return None
    return tuple(found)


def same_model(one: str, other: str) -> bool | None:
    """Whether two names or paths mean one model; None where names cannot tell.

    A folder may be a copy of a hub repository or of another folder, and a server may
    give its model any name, so only two hub ids can differ for sure. Even they do not
    where one is the quantised other: then its states are what a server of it gives.
    """
    if _last_part(one) == _last_part(other):
        return True
    hub = [bool(_HUB_ID.fullmatch(name)) for name in (one, other)]
    if not all(hub) or any(map(os.path.isdir, (one, other))):
        return None
    plain = [_QUANTISED.sub("", _last_part(name)) for name in (one, other)]
    return None if plain[0] == plain[1] else False


def _last_part(model: str) -> str:
    path = os.path.normpath(model) + "/"
    snapshot = _SNAPSHOT.search(path)
    last = snapshot.group(1) if snapshot else path.rstrip("/").rpartition("/")[2]
    return last.casefold()


def _fits(found: Sequence[int], wanted: Sequence[int | None]) -> bool:
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(w in (None, f) for f, w in pairs)


def _listed(ids: Sequence[object]) -> str:
    return ", ".join(map(str, ids))
