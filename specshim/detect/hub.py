"""Model facts where config.json may have to be fetched first, as vLLM would next."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from specshim.detect.model import ModelFacts, ModelNotFound, detect_model


def detect_or_download(
    model: str, *, revision: str | None = None, token: str | bool | None = None
) -> ModelFacts:
    """As ``detect_model``; a hub model's config.json is fetched if it is not cached.

    The download is huggingface_hub's own, from the user's environment: it obeys
    HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.

    Args:
        model: a local folder or a hub id.
        revision: branch, tag or commit; None for the default branch.
        token: for gated models; None for the one that is logged in.

    Raises:
        ModelNotFound: it is neither here nor to be had.
    """
    try:
        return detect_model(model, revision=revision)
    except ModelNotFound as error:
        folder = None if _is_local(model) else _download(model, revision, token)
        if folder is None:
            raise error from None
    return dataclasses.replace(detect_model(folder), name=model)


def _is_local(model: str) -> bool:
    try:
        return Path(model).exists()
    except (OSError, ValueError):
        return True


def _download(model: str, revision: str | None, token: str | bool | None) -> str | None:
    """The folder with the model's config.json; None where it could not be fetched."""
    try:
        import huggingface_hub
    except ImportError:
        return None
    try:
        path = huggingface_hub.hf_hub_download(
            model, "config.json", revision=revision, token=token
        )
    except (OSError, ValueError):  # what the hub client raises, offline included
        return None
    return str(Path(path).parent)
