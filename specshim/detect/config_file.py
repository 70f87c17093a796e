"""Finds and reads a model's config.json: a local folder, or the Hugging Face cache."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specshim.detect.model import ModelNotFound

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the Hugging Face cache.

    Source of the order: ``huggingface_hub.constants``.
    """
    for variable, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if environ.get(variable):
            return Path(environ[variable]).expanduser() / below
    return Path("~/.cache/huggingface/hub").expanduser()


def may_be_hub_id(model: str) -> bool:
    """Whether ``model`` can only be a hub id: spelled like one, and no path here."""
    return bool(_HUB_ID.fullmatch(model)) and not Path(model).exists()


def find_config(model: str, revision: str | None = None) -> Path:
    """The path of the config.json of ``model``, at ``revision`` of a cached hub id.

    Raises:
        ModelNotFound: there is none.
    """
    try:
        folder = Path(model).expanduser()
        is_folder, exists = folder.is_dir(), folder.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no home
        raise ModelNotFound(f"{model[:80]!r} is not a usable path or hub id.") from None
    if model and is_folder:
        return _in_folder(model, folder)
    if model and exists:
        raise ModelNotFound(
            f"{model!r} is a file; give the folder that holds the model's config.json."
        )
    if not _HUB_ID.fullmatch(model):
        raise ModelNotFound(
            f"There is no folder {model!r}; give a local model folder "
            "or a hub id like org/name."
        )
    return _in_cache(model, hub_cache(), revision)


def _in_folder(model: str, folder: Path) -> Path:
    config = folder / "config.json"
    if config.is_file():
        return config
    hint = (
        " (its params.json, Mistral's own format, is not read)"
        if (folder / "params.json").is_file()
        else ""
    )
    raise ModelNotFound(
        f"The folder {model!r} has no config.json{hint}; "
        "give the folder that transformers would load."
    )


def _in_cache(model: str, cache: Path, revision: str | None) -> Path:
    repository = cache / f"models--{model.replace('/', '--')}"
    if not repository.is_dir():
        raise ModelNotFound(
            f"{model!r} is neither a folder nor in the Hugging Face cache {cache}; "
            f"download it first (hf download {model} config.json) or give a folder."
        )
    wanted = revision or "main"
    commit = _commit(repository, wanted)
    config = repository / "snapshots" / commit / "config.json"
    if commit and config.is_file():
        return config
    raise ModelNotFound(
        f"The Hugging Face cache {cache} holds no config.json of {model!r} at "
        f"revision {wanted!r}{_others(repository)}; "
        f"download it first (hf download {model} config.json --revision {wanted})."
    )


def _commit(repository: Path, revision: str) -> str:
    """The snapshot folder that ``revision`` (branch, tag, pull request, hash) means."""
    if ".." in revision.split("/") or revision.startswith("/"):
        return ""
    try:
        return (repository / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return "" if "/" in revision else revision


def _others(repository: Path) -> str:
    found = sorted(
        path.parent.name[:12] for path in repository.glob("snapshots/*/config.json")
    )
    return f" (there is {', '.join(found[:3])})" if found else ""


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
        ModelNotFound: it cannot be read, or is not a JSON object.
    """
    import json  # here, so that importing the package stays cheap

    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelNotFound(f"{path} cannot be read: {reason}.") from None
    except (ValueError, RecursionError):
        raise ModelNotFound(
            f"{path} is not valid JSON; download the model's config.json again."
        ) from None
    if not isinstance(config, dict):
        raise ModelNotFound(
            f"{path} holds no JSON object, so it is not a model's config.json."
        )
    return config
