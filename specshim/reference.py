"""Reference hidden states: the same weights run in transformers, layer by layer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specshim.detect import ModelNotFound
from specshim.detect.config_file import find_config
from specshim.tiny import quiet_transformers

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PromptStates", "ReferenceFailed", "compute_reference", "read_config"]


_AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModel",
)


class ReferenceFailed(Exception):
    """transformers gives no reference for this model; the message is one sentence."""


@dataclass(frozen=True)
class PromptStates:
    """The states of one prompt.

    ``stream[k]`` is the residual stream entering layer k, ``[tokens, hidden]``:
    0 is what the first layer receives, ``num_hidden_layers`` what the final norm
    takes. ``post_norm`` is the latter after the final
    norm, None where the model does not give it.
    """

    token_ids: tuple[int, ...]
    stream: Tensor  # [num_hidden_layers + 1, tokens, hidden]
    post_norm: Tensor | None  # [tokens, hidden]


def read_config(model: str, *, trust_remote_code: bool = False) -> Any:
    """The model's configuration as transformers reads it.

    Raises:
        ReferenceFailed: transformers is missing or cannot read it.
    """
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise ReferenceFailed(
            f"The reference needs torch and transformers, and {error.name} is not "
            "installed in this environment; run this where vLLM is installed."
        ) from error
    try:
        return AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    except Exception as error:
        try:
            find_config(model)
        except ModelNotFound as not_found:
            raise ReferenceFailed(str(not_found)) from error
        raise ReferenceFailed(
            f"transformers cannot read the configuration of {model}: {_brief(error)}"
        ) from error


def compute_reference(
    model: str,
    prompts: Sequence[Sequence[int]],
    dtype: str,
    *,
    device: str = "cpu",
    trust_remote_code: bool = False,
    extras: Sequence[Mapping[str, Any]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[PromptStates]:
    """Run ``prompts`` one at a time through ``model`` and record every layer.

    Args:
        model: a folder or hub id with the weights that the server serves.
        prompts: token ids, one sequence each.
        dtype: of weights and computation, "float32", "bfloat16" or "float16".
        extras: per prompt, what the model takes beside token ids (pixel values, ...).
        progress: called after each prompt with the number done.

    Returns:
        One PromptStates per prompt, float32 tensors on the CPU.

    Raises:
        ReferenceFailed: the model cannot be loaded or run, or its decoder
            layers cannot be told apart from other lists of modules.
    """
    config = read_config(model, trust_remote_code=trust_remote_code)
    text_config = config.get_text_config(decoder=True)
    # LongCat-Flash counts both halves of a layer in the one, layers in the other.
    names = ("num_hidden_layers", "num_layers")
    given = [getattr(text_config, name, None) for name in names]
    counts = [count for count in given if isinstance(count, int)]
    if not counts:
        raise ReferenceFailed(
            f"The configuration of {model} names no number of layers."
        )
    # The class for text alone would take a prompt's pixels, and leave them out.
    classes = _AUTO_CLASSES[1:] if extras else _AUTO_CLASSES
    network = _load(model, config, dtype, device, trust_remote_code, classes)
    try:
        import torch

        with torch.inference_mode(), quiet_transformers():
            name, layers = _decoder_layers(network, counts, list(prompts[0])[:2])
            parent = network.get_submodule(name.rpartition(".")[0])
            active = getattr(text_config, "altup_active_idx", 0)
            states = []
            for done, prompt in enumerate(prompts, start=1):
                extra = extras[done - 1] if extras else {}
                states.append(_run(network, parent, layers, prompt, active, extra))
                if progress is not None:
                    progress(done)
            return states
    except ReferenceFailed:
        raise
    except Exception as error:
        raise ReferenceFailed(
            f"transformers cannot run {model} in {dtype} on {device}: {_brief(error)}"
        ) from error
    finally:
        del network
        gc.collect()


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _load(
    model: str,
    config: Any,
    dtype: str,
    device: str,
    trust_remote_code: bool,
    classes: Sequence[str],
) -> nn.Module:
    """The model with eager attention, by the first automatic class that takes it."""
    import torch
    import transformers

    failures = []
    for auto_name in classes:
        auto_class = getattr(transformers, auto_name, None)
        if auto_class is None:
            continue
        for options in ({"attn_implementation": "eager"}, {}):
            try:
                with quiet_transformers():
                    network = auto_class.from_pretrained(
                        model,
                        config=config,
                        dtype=getattr(torch, dtype),
                        trust_remote_code=trust_remote_code,
                        **options,
                    )
            except Exception as error:
                failures.append(f"{auto_name}: {_brief(error)}")
                continue
            loaded: nn.Module = network.eval().to(device)
            return loaded
    raise ReferenceFailed(f"transformers cannot load {model} ({failures[0]}).")


def _decoder_layers(
    network: nn.Module, counts: Sequence[int], probe: Sequence[int]
) -> tuple[str, list[nn.Module]]:
    """The decoder's layer list and its name, found by running ``probe``.

    Candidates are the lists of as many modules as one of ``counts``, which come in
    order of preference; the decoder's is the one whose members each run once, in order,
    for text. Where a model keeps several such lists, the outermost is the decoder's.
    """
    import torch

    candidates = {
        name: list(module)
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) in counts
    }
    calls: list[int] = []
    members = [layer for layers in candidates.values() for layer in layers]
    with _hooks(
        [
            layer.register_forward_pre_hook(lambda module, _: calls.append(id(module)))
            for layer in {id(layer): layer for layer in members}.values()
        ]
    ):
        _forward(network, probe, {})
    for name in sorted(
        candidates,
        key=lambda name: (counts.index(len(candidates[name])), name.count(".")),
    ):
        wanted = [id(layer) for layer in candidates[name]]
        if [call for call in calls if call in set(wanted)] == wanted:
            return name, candidates[name]
    raise ReferenceFailed(
        f"No list of {counts[0]} decoder layers that run one after the other was found "
        f"in {type(network).__name__}."
    )


@contextmanager
def _hooks(handles: Sequence[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _forward(
    network: nn.Module, token_ids: Sequence[int], extra: Mapping[str, Any]
) -> Any:
    import torch

    device = next(network.parameters()).device
    ids = torch.tensor([list(token_ids)], device=device)
    mask = torch.ones_like(ids)
    return network(input_ids=ids, attention_mask=mask, use_cache=False, **extra)


def _run(
    network: nn.Module,
    parent: nn.Module,
    layers: Sequence[nn.Module],
    token_ids: Sequence[int],
    active: int,
    extra: Mapping[str, Any],
) -> PromptStates:
    """One prompt; ``active`` is the stream to take where a layer carries several.

    Hooks rather than ``output_hidden_states``: the last entry of that has gone
    through the final norm. What enters a layer, rather than what the one before it
    gives: models add image features between the two (Qwen3-VL), and before the final
    norm Gemma-3n takes the mean of its streams.
    """
    import torch

    tokens = len(token_ids)
    entered: dict[int, Tensor] = {}
    left: list[Tensor] = []
    normed: list[tuple[Tensor, Tensor]] = []  # what each module outside the layers
    post_norm: list[Tensor] = []

    def entering(module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        value = args[0] if args else kwargs["hidden_states"]
        entered[order[module]] = _rows(value, tokens, active)

    def leaving(_: nn.Module, __: Any, output: Any) -> None:
        left.append(_rows(output, tokens, active))

    def outside(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and _has_rows(args[0], tokens) and _has_rows(output, tokens):
            normed.append(
                (_rows(args[0], tokens, active), _rows(output, tokens, active))
            )

    def finished(_: nn.Module, __: Any, output: Any) -> None:
        last = getattr(output, "last_hidden_state", None)
        if last is not None:
            post_norm.append(_rows(last, tokens, active))

    order = {layer: index for index, layer in enumerate(layers)}
    others = [child for child in parent.children() if not _holds(child, layers)]
    with _hooks(
        [
            *[
                layer.register_forward_pre_hook(entering, with_kwargs=True)
                for layer in layers
            ],
            layers[-1].register_forward_hook(leaving),
            *[child.register_forward_hook(outside) for child in others],
            parent.register_forward_hook(finished),
        ]
    ):
        _forward(network, token_ids, extra)
    final = left[-1]
    if post_norm and normed and torch.equal(normed[-1][1], post_norm[-1]):
        final = normed[-1][0]
    return PromptStates(
        token_ids=tuple(token_ids),
        stream=torch.stack([*[entered[k] for k in range(len(layers))], final]),
        post_norm=post_norm[-1] if post_norm else None,
    )


def _holds(module: nn.Module, layers: Sequence[nn.Module]) -> bool:
    return any(member is layer for member in module.modules() for layer in layers)


def _has_rows(value: Any, tokens: int) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and tuple(value.shape[:-1]) == (1, tokens)


def _rows(value: Any, tokens: int, active: int) -> Tensor:
    """A copy of a layer's output as float32 ``[tokens, hidden]`` on the CPU.

    Layers give ``[1, tokens, hidden]``, alone or first in a tuple; Gemma-3n
    gives ``[streams, 1, tokens, hidden]``.
    """
    import torch

    tensor = value[0] if isinstance(value, (tuple, list)) else value
    if tensor.dim() == 4:
        tensor = tensor[active]
    if tensor.dim() == 3 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() != 2 or tensor.shape[0] != tokens:
        raise ReferenceFailed(
            f"A decoder layer gave states of shape {list(tensor.shape)} for {tokens} "
            "tokens, which has no one row per token."
        )
    rows: Tensor = tensor.to("cpu", torch.float32, copy=True)
    return rows
