"""Model facts where config.json may have to be fetched first, as vLLM would next."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specshim.detect.config_file import may_be_hub_id
from specshim.detect.model import ModelFacts, ModelNotFound, detect_model


def model_of_options(
    model: str, options: Mapping[str, Any], *, download: bool = False
) -> ModelFacts:
    """The model that vLLM would serve under ``options``, keyed as in EngineArgs.

    Heeds revision, hf_token, hf_config_path, and hf_overrides where that is a dict.
    Without ``download`` nothing but folders and the local cache is read.

    Raises:
        ModelNotFound: its config.json is not to be had, or is not a decoder's.
    """
    place = _text(options.get("hf_config_path")) or model
    overrides = options.get("hf_overrides")
    revision, token = options.get("revision"), options.get("hf_token")
    return dataclasses.replace(
        detect_or_download(
            place,
            revision=_text(revision),
            token=token if isinstance(token, (str, bool)) else None,
            overrides=overrides if isinstance(overrides, Mapping) else None,
            download=download,
        ),
        name=model,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def detect_or_download(
    model: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    overrides: Mapping[str, Any] | None = None,
    download: bool = True,
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
        return detect_model(model, revision=revision, overrides=overrides)
    except ModelNotFound as error:
        if not download or not may_be_hub_id(model):
            raise
        before = error
    try:
        folder = _download(model, revision, token)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"{before} A download was tried and failed: {error}."
        ) from None
    return dataclasses.replace(detect_model(folder, overrides=overrides), name=model)


def _download(model: str, revision: str | None, token: str | bool | None) -> str:
    """The folder with the model's config.json, fetched.

    Raises:
        ModelNotFound: it could not be; the message is the end of a sentence.
    """
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    except ImportError:
        raise ModelNotFound("huggingface_hub is not installed") from None
    # The client repeats what fails for half a minute, and logs it: ask once before.
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        url = hf_hub_url(model, "config.json", revision=revision)
        get_hf_file_metadata(url, token=token, timeout=10)
        path = hf_hub_download(model, "config.json", revision=revision, token=token)
    except Exception as error:  # of the client, or of the HTTP library below it
        line = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise ModelNotFound(f"{type(error).__name__}: {line[:200]}") from None
    finally:
        logger.setLevel(level)
    return str(Path(path).parent)
