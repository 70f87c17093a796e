"""How a final norm uses its weight: as its gain, or as what the gain has beyond one.

A trainer's targets are the verifier's head on the verifier's final norm. Its copy of
that norm may be of another class than the verifier's, and the weight then means another
gain. No list of models says which is which: the norm that transformers would build is
made and tried.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Any

import torch

_FINAL = re.compile(r"([a-z]\w*\.)*\w*norm(_f)?")  # what speculators loads; no layer's
_ROWS = 4  # that a norm is tried on
_NEAR = 1e-2  # of their size; eps may be 1e-3, and what is to be told apart is 1

_LOADING: ContextVar[bool] = ContextVar("specshim_loading_norm", default=False)


class Unreadable(Exception):
    """How the norm uses its weight cannot be told; the message ends a sentence."""


@contextmanager
def meant(norm: Any, verifier: str | None) -> Iterator[None]:
    """Have what the block loads into ``norm`` give the gain of the verifier's norm.

    A block in which nothing is loaded leaves it alone, and so do blocks within.
    """
    if norm is None or verifier is None or _LOADING.get():
        yield
        return

    def loaded(module: Any, _: Any) -> None:
        weight = module.weight
        if not weight.is_meta and not weight.isnan().any():
            with torch.no_grad():
                weight.add_(shift(module, verifier))

    token = _LOADING.set(True)
    handle = norm.register_load_state_dict_post_hook(loaded)
    try:
        yield
    finally:
        handle.remove()
        _LOADING.reset(token)


def shift(norm: Any, verifier: str) -> int:
    """What to add to the verifier's weight in ``norm``; 0, with a warning, if unknown.

    Args:
        norm: the trainer's copy, whatever its weight is.
        verifier: a folder, or a name on the Hub.
    """
    try:
        return offset_of_verifier(verifier) - offset(norm)
    except Unreadable as reason:
        warnings.warn(  # the text is the same each time, so Python shows it once
            f"specshim: the gain of {verifier}'s final norm cannot be told ({reason}), "
            "so its weight is taken as speculators takes it; where the model means 1 + "
            "weight, as Gemma and Qwen3.5 do, the training targets are mis-scaled.",
            stacklevel=2,
        )
        return 0


@functools.cache
def offset_of_verifier(verifier: str) -> int:
    """:func:`offset` of the final norm of the model ``verifier``, from its config.

    Raises:
        Unreadable: transformers does not know the model, or builds no such norm.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(verifier, trust_remote_code=False)
        config = config.get_text_config()
    except Exception as error:
        raise Unreadable(_brief(error)) from error
    return offset(_final_norm(config))


def offset(norm: Any) -> int:
    """0 where ``norm`` gives weight * x / rms(x), 1 where it gives (1 + weight) * ...

    Its own weight counts for nothing; it may be on the meta device.

    Raises:
        Unreadable: it gives neither.
    """
    name = type(norm).__name__
    if [part for part, _ in norm.named_parameters()] != ["weight"]:
        raise Unreadable(f"{name} has other parameters than a weight")
    try:
        probe = deepcopy(norm).to_empty(device="cpu").float()
        rows = _rows(probe.weight.shape[-1])
        given = [_with_weight(probe, value, rows) for value in (0, 1)]
    except Exception as error:
        raise Unreadable(_brief(error)) from error
    unit = rows * rows.square().mean(-1, keepdim=True).rsqrt()
    for beyond in (0, 1):
        wanted = [(beyond + value) * unit for value in (0, 1)]
        if all(map(_alike, given, wanted)):
            return beyond
    raise Unreadable(f"{name} gives neither weight nor 1 + weight times x / rms(x)")


def _rows(width: int) -> torch.Tensor:
    # Not centred, so that a norm which takes the mean away is none of these.
    generator = torch.Generator().manual_seed(0)
    return 1 + 2 * torch.randn(_ROWS, width, generator=generator)


def _with_weight(norm: Any, value: float, rows: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        norm.weight.fill_(value)
        given: torch.Tensor = norm(rows)
    return given


def _alike(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(torch.allclose(given, wanted, atol=_NEAR, rtol=_NEAR))


def _final_norm(config: Any) -> Any:
    """The norm after the last layer of the model of ``config``, on the meta device."""
    model = _on_meta(config)
    found = [name for name, _ in model.named_modules() if _FINAL.fullmatch(name)]
    if not found:
        raise Unreadable(f"{type(model).__name__} has no final norm")
    return model.get_submodule(min(found, key=len))


def _on_meta(config: Any) -> Any:
    """The model without weights, of one layer where it can be built like that."""
    import transformers

    small = deepcopy(config)
    small.num_hidden_layers = 1
    problem: Exception | None = None
    for auto_class in (transformers.AutoModel, transformers.AutoModelForCausalLM):
        for one in (small, config):
            try:
                with torch.device("meta"):
                    return auto_class.from_config(one, trust_remote_code=False)
            except Exception as error:
                problem = problem or error
    raise Unreadable(_brief(problem)) from problem


def _brief(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
