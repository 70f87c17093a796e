"""Samples are read while vLLM is still writing them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from packaging.specifiers import SpecifierSet

from specshim import _locks
from specshim.patching import Fingerprint, Patch, Target


def generate_hidden_states(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Hand the path on once the server has let go of its lock, if there is a file.

    Raises:
        FileNotFoundError: there is none, and the lock file says why.
    """
    path = wrapped(*args, **kwargs)
    with _locks.reason(f"{path}.lock") as said:
        if path and os.path.exists(f"{path}.lock"):
            _locks.wait(f"{path}.lock")
        return _there(path, said)


async def generate_hidden_states_async(
    wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The same for a coroutine."""
    path = wrapped(*args, **kwargs)
    path = await path if inspect.isawaitable(path) else path
    with _locks.reason(f"{path}.lock") as said:
        if path and os.path.exists(f"{path}.lock"):
            await _locks.wait_async(f"{path}.lock")
        return _there(path, said)


def _there(path: Any, said: Callable[[], str]) -> Any:
    if path and not os.path.exists(path) and (why := said()):
        raise _locks.missing(path, why)
    return path


CLIENT = "speculators.data_generation.vllm_client"

PATCH = Patch(
    id="online-lock-skip",
    summary="the client of 0.5 reads files that are not complete",
    why=(
        "Samples are truncated or missing (SafetensorError, No such file) with vLLM "
        "0.22 or newer: it writes in the background under a lock file, and the client "
        "of speculators 0.5 knows no lock."
    ),
    upstream=("speculators#424", "speculators#566"),
    affects=SpecifierSet(">=0.5.0,<0.6.0"),
    targets=(
        Target(
            name=f"{CLIENT}.generate_hidden_states",
            wrapper=generate_hidden_states,
            forms=(Fingerprint(("client", "model", "token_ids", "timeout")),),
            aliases=("speculators.train.data.generate_hidden_states",),
        ),
        Target(
            name=f"{CLIENT}.generate_hidden_states_async",
            wrapper=generate_hidden_states_async,
            forms=(Fingerprint(("client", "model", "token_ids", "timeout")),),
            aliases=("__main__.generate_hidden_states_async",),
        ),
    ),
    processes=("trainer",),
    remove_when="speculators>=0.6.0",
)
