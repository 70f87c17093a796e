"""Taps under stock extraction: a model returns what they recorded as its own.

For models that return no states of their layers, or not all of them. The taps'
buffer takes the place of what vLLM's interface for that would have returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import torch

from specshim.tap.layers import TapRefused
from specshim.tap.taps import Taps, install_taps

ASKED: Final = "_specshim_layers_to_return"
"""The attribute of a VllmConfig that holds what was asked for while a model loads."""

NOTHING: Final[tuple[int, ...]] = ()


def load_model(
    wrapped: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """``Worker.load_model`` where it serves extraction: load, tap what was asked for.

    Raises:
        TapRefused: the model cannot be tapped; the server must not start.
    """
    from vllm.config import set_current_vllm_config

    config = instance.vllm_config
    method = getattr(config.speculative_config, "method", None)
    if method != "extract_hidden_states" or hasattr(config, ASKED):
        return wrapped(*args, **kwargs)
    object.__setattr__(config, ASKED, NOTHING)
    try:
        with set_current_vllm_config(config):
            result = wrapped(*args, **kwargs)
            asked = getattr(config, ASKED)
            if asked:
                return_taps(instance.model_runner, config, asked)
    finally:
        object.__delattr__(config, ASKED)
    return result


def loading() -> bool:
    """Whether a model is being loaded in :func:`load_model`."""
    return hasattr(_config(), ASKED)


def ask_for(layer_ids: Any) -> None:
    """What stands in for the model's ``set_aux_hidden_state_layers``."""
    object.__setattr__(_config(), ASKED, tuple(sorted(set(layer_ids))))


def _config() -> Any:
    from vllm.config import get_current_vllm_config

    with suppress(AssertionError):  # newer releases insist that there is one
        return get_current_vllm_config()
    return None


def return_taps(runner: Any, config: Any, layer_ids: tuple[int, ...]) -> None:
    """Tap the runner's model and have its forward return the rows beside its output.

    Args:
        layer_ids: ascending, each once, as ``layers-not-as-asked`` has the runner
            ask for them.

    Raises:
        TapRefused: the taps cannot be shown to be right.
    """
    model = runner.get_model()
    name = type(model).__name__
    if hasattr(model, "do_not_compile"):
        raise TapRefused(
            f"{name} is compiled as a whole, so that nothing can be returned beside "
            "its output; use --specshim-route tap"
        )
    forward = model.forward
    installed: list[Taps] = []
    shown: list[bool] = []

    def returning(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if not installed:  # the run that proves the taps
            return output, []
        if not isinstance(output, torch.Tensor):  # on its way to the next stage
            return output
        (taps,) = installed
        if not shown:
            shown.append(True)
            _check_that_they_ran(taps, name)
        rows = taps.rows[: output.shape[0]]
        return output, [rows[:, slot] for slot in range(len(layer_ids))]

    model.forward = returning
    try:
        taps = install_taps(runner, config, layer_ids)
    except TapRefused as error:
        why = str(error).replace("; use --specshim-route cache", "")
        raise TapRefused(
            f"{name} does not return all of the layers {list(layer_ids)} in this vLLM, "
            f"and: {why}"
        ) from error
    taps.stage_rows = taps.stage_runs = None  # the stock connector has its own copies
    taps.runs.zero_()
    # The compile cache knows graphs by the config alone.
    given = config.additional_config or {}
    if isinstance(given, dict):
        config.additional_config = {**given, "specshim_returns": list(layer_ids)}
    installed.append(taps)


def _check_that_they_ran(taps: Taps, name: str) -> None:
    if int(taps.runs.min()) == 0:
        raise TapRefused(
            f"the taps of {name} did not run: a graph that was compiled without them "
            "was taken from the compile cache; remove VLLM_CACHE_ROOT and start again"
        )
