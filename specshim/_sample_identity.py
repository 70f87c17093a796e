"""Whose states are these? What a file's header says, held against the trainer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence

_SNAPSHOT = re.compile(r"models--[^/]+--([^/]+)/snapshots/")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def contradiction(
    metadata: Mapping[str, str],
    model: str | None,
    layer_ids: Sequence[int | None] | None,
) -> str | None:
    """What the header says otherwise, as the end of a sentence, or None."""
    found = layer_ids_of(metadata)
    if found is not None and layer_ids is not None and not _fits(found, layer_ids):
        wanted = ["any" if i is None else i for i in layer_ids]
        return (
            f"the file holds layers {_listed(found)}, the trainer expects "
            f"{_listed(wanted)}"
        )
    name = metadata.get("model")
    if name and model and same_model(name, model) is False:
        return f"the file holds states of {name}, the trainer expects {model}"
    return None


def layer_ids_of(metadata: Mapping[str, str]) -> tuple[int, ...] | None:
    """The layer ids that a header names, None where it names none that can be read."""
    try:
        found = json.loads(metadata["layer_ids"])
    except (KeyError, TypeError, ValueError):
        return None
    if not isinstance(found, list) or any(type(i) is not int for i in found):
        return None
    return tuple(found)


def same_model(one: str, other: str) -> bool | None:
    """Whether two names or paths mean one model; None where names cannot tell.

    A path may be a copy of a hub repository, a snapshot in the hub's cache, or gone by
    now, so only two hub ids, or two folders that are both here, can differ for sure.
    """
    if _last_part(one) == _last_part(other):
        return True
    folders = [os.path.isdir(path) for path in (one, other)]
    if all(folders):
        return os.path.samefile(one, other)
    hub = [bool(_HUB_ID.fullmatch(name)) for name in (one, other)]
    return False if all(hub) and not any(folders) else None


def _last_part(model: str) -> str:
    path = model.rstrip("/") + "/"
    snapshot = _SNAPSHOT.search(path)
    last = snapshot.group(1) if snapshot else path.rstrip("/").rpartition("/")[2]
    return last.casefold()


def _fits(found: Sequence[int], wanted: Sequence[int | None]) -> bool:
    pairs = zip(found, wanted, strict=False)
    return len(found) == len(wanted) and all(w in (None, f) for f, w in pairs)


def _listed(ids: Sequence[object]) -> str:
    return ", ".join(map(str, ids))
