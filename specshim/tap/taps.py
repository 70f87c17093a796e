"""Installing the taps on a loaded model: buffers, start-up proof, wrapped layers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specshim.tap.layers import Forward, TapRefused, eagerly, find_decoder_layers
from specshim.tap.ops import tap
from specshim.tap.probe import prove
from specshim.tap.proof import Proof, Reading
from specshim.tap.stages import Stage, whole
from specshim.tap.streams import Stream

logger = logging.getLogger("vllm.specshim")

# Few, so that the proof is quick, and odd, so that it is no model's dimension.
_PROOF_TOKENS = 17


@dataclass
class Taps:
    """The taps of one worker's model.

    Attributes:
        runner: the model runner whose forward fills the buffers.
        layer_ids: as requested, duplicates kept; the slots of a sample.
        rows: [max_num_batched_tokens, slots, hidden] in the model's dtype; row t is the
            t-th token of the step's batch.
        runs: int32 [slots]; how often each tap ran since it was last set to zero.
        stage_rows, stage_runs: where a step's rows wait for the bus while the next
            forward overwrites ``rows``; None on the CPU. Allocated here, before vLLM
            profiles its memory, so that the KV cache is sized around them.
        readings: what the proof found, for the log: layer id -> reading.
        stage: the pipeline stage, whose layers alone are recorded.
    """

    runner: Any
    layer_ids: tuple[int, ...]
    rows: torch.Tensor
    runs: torch.Tensor
    stage_rows: torch.Tensor | None
    stage_runs: torch.Tensor | None
    readings: dict[int, str]
    stage: Stage = field(default_factory=lambda: whole(0))

    @property
    def slots(self) -> tuple[int, ...]:
        """Slot j of the buffers is ``layer_ids[slots[j]]``."""
        return self.stage.slots(self.layer_ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> Taps:
        return self  # a copied config still speaks of the one model in this process

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return type(None), ()  # and in another process there are none


def _dummy_forward(runner: Any, tokens: int) -> Callable[[], object]:
    """One eager forward without caches, as the runner's own profile run makes it."""
    parameters = inspect.signature(runner._dummy_run).parameters
    options = {"is_profile": True, "skip_attn": True}  # skip_attn: model runner V2
    given = {name: value for name, value in options.items() if name in parameters}

    def run() -> object:
        return runner._dummy_run(tokens, **given)

    return run


def _check_ranks_agree(proof: Proof, layer_ids: Sequence[int], first: int) -> None:
    """Refuse where tensor-parallel ranks hold different rows (partial sums, shards).

    What a pipeline stage sends is gathered from all ranks of it, so the ranks of the
    next one hold the same at its ``first`` layer.
    """
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return
    for layer_id in sorted({i for i in layer_ids if i > first}):
        output = proof.outputs[layer_id - 1]
        stream = proof.streams.get(layer_id - 1)
        value = _all_states(output) if stream is None else stream.value(output)
        every = group.all_gather(value.contiguous().unsqueeze(0), dim=0).float()
        finite = every.isfinite().all(dim=0)
        spread = (every - every[0]).abs()[:, finite]
        scale = every[:, finite].abs()
        if not bool(finite.any()) or float(spread.max()) > 0.05 * float(scale.max()):
            raise TapRefused(
                f"layer id {layer_id} cannot be tapped with tensor parallel size "
                f"{group.world_size}: the ranks hold different rows after layer "
                f"{layer_id - 1} (partial sums or token shards); use tensor parallel "
                "size 1, and please report this model"
            )


def _all_states(output: Any) -> torch.Tensor:
    """Everything a layer returns, for ids that the final norm's input stands for."""
    values = output if isinstance(output, (tuple, list)) else (output,)
    return torch.cat([v.flatten() for v in values if isinstance(v, torch.Tensor)])


def install_taps(
    runner: Any,
    vllm_config: Any,
    layer_ids: Sequence[int],
    stage: Stage | None = None,
) -> Taps:
    """Tap the runner's loaded model; call before its first forward.

    Args:
        runner: a model runner whose model is loaded.
        vllm_config: its configuration.
        layer_ids: as requested, of all pipeline stages.
        stage: this worker's; None where there is but one.

    Raises:
        TapRefused: the proof failed; nothing is changed then.
    """
    model = runner.get_model() if hasattr(runner, "get_model") else runner.model
    config = vllm_config.model_config
    hidden, count = config.get_hidden_size(), config.get_total_num_hidden_layers()
    most = vllm_config.scheduler_config.max_num_batched_tokens
    tokens = min(_PROOF_TOKENS, most)
    run = _dummy_forward(runner, tokens)
    stage = stage or whole(count)
    ours = [layer_ids[slot] for slot in stage.slots(layer_ids)]
    first = stage.layers.start
    with eagerly(model):
        layers = find_decoder_layers(model, count, run, stage.layers)
        proof = prove(model, layers, ours, hidden, tokens, run, first)
    _check_ranks_agree(proof, ours, first)

    shape = (most, len(ours), hidden)
    rows = torch.zeros(shape, dtype=config.dtype, device=runner.device)
    runs = torch.zeros(len(ours), dtype=torch.int32, device=runner.device)
    staged = rows.device.type != "cpu"
    taps = Taps(
        runner=runner,
        layer_ids=tuple(layer_ids),
        rows=rows,
        runs=runs,
        stage_rows=torch.empty_like(rows) if staged else None,
        stage_runs=torch.empty_like(runs) if staged else None,
        readings={i: str(_reading(proof, i)) for i in ours},
        stage=stage,
    )
    slots: dict[int, list[int]] = {}
    for slot, layer_id in enumerate(ours):
        slots.setdefault(layer_id, []).append(slot)
    for layer_id, places in slots.items():
        reading = _reading(proof, layer_id)
        if isinstance(reading, Reading):
            module = (*layers.modules, *(proof.final_norm or ())[:1])[layer_id]
            wrap = _input_tap(taps, reading, tuple(places))
        else:
            module = layers.modules[layer_id - 1]
            wrap = _output_tap(taps, reading, tuple(places))
        module.forward = wrap(module.forward)  # type: ignore[method-assign]
    logger.debug(
        "Tapped %s of %s: %s", layers.name, type(model).__name__, taps.readings
    )
    return taps


def _reading(proof: Proof, layer_id: int) -> Reading | Stream:
    """Where id ``layer_id`` is recorded: at its layer's entry if that can be read.

    What the model's own code does between two layers (DeepStack adds image features)
    is in the stream then. The last id has no layer to enter: it is what the last
    layer gives, or, where the model makes something else of that (Gemma-3n the mean of
    all its streams), what its final norm takes.
    """
    if layer_id in proof.inputs:
        return proof.inputs[layer_id]
    if layer_id - 1 in proof.streams or proof.final_norm is None:
        return proof.streams[layer_id - 1]
    return proof.final_norm[1]


def _output_tap(
    taps: Taps, stream: Stream, slots: tuple[int, ...]
) -> Callable[[Forward], Forward]:
    rows, runs = taps.rows, taps.runs

    def wrap(forward: Forward) -> Forward:
        def tapped(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            main, residual = stream.parts(output)
            for slot in slots:
                tap(rows, runs, main, residual, slot)
            return output

        return tapped

    return wrap


def _input_tap(
    taps: Taps, reading: Reading, slots: tuple[int, ...]
) -> Callable[[Forward], Forward]:
    rows, runs = taps.rows, taps.runs

    def wrap(forward: Forward) -> Forward:
        def tapped(*args: Any, **kwargs: Any) -> Any:
            main, residual = reading.parts(args, kwargs)
            for slot in slots:
                tap(rows, runs, main, residual, slot)
            return forward(*args, **kwargs)

        return tapped

    return wrap
