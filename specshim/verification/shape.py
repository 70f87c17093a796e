"""Checks before any number is looked at: shapes, layer ids, token ids."""

from __future__ import annotations

from collections.abc import Sequence

from specshim.reference import PromptStates
from specshim.verification.collect import Sample
from specshim.verification.diagnose import Finding


def check_inputs(
    samples: Sequence[Sample],
    layer_ids: Sequence[int],
    exact: Sequence[PromptStates],
    rounded: Sequence[PromptStates] | None,
) -> str:
    """The samples' dtype; ValueError where the arguments do not fit together."""
    if not samples or any(sample.index >= len(exact) for sample in samples):
        raise ValueError("There must be one sample, and a reference for each.")
    if rounded is not None and len(rounded) != len(exact):
        raise ValueError("The two references differ in their number of prompts.")
    dtypes = {sample.dtype for sample in samples}
    if len(dtypes) > 1:
        raise ValueError(f"The samples are of different dtypes: {sorted(dtypes)}.")
    dtype = dtypes.pop()
    if dtype != "float32" and rounded is None:
        raise ValueError(f"A {dtype} server needs a {dtype} reference too.")
    last = exact[0].stream.shape[0] - 1
    outside = [layer_id for layer_id in layer_ids if not 0 <= layer_id <= last]
    if outside or not layer_ids:
        raise ValueError(
            f"Layer ids {list(layer_ids)} do not fit a model whose ids are 0 to {last}."
        )
    hidden = {sample.states.shape[2] for sample in samples}
    if hidden != {exact[0].stream.shape[2]}:
        raise ValueError(
            f"The server's states have {sorted(hidden)} columns, the reference "
            f"{exact[0].stream.shape[2]}: not the same model."
        )
    return dtype


def token_ids_right(sample: Sample) -> bool:
    """Whether the file's token ids start with the prompt."""
    return sample.token_ids[: len(sample.prompt)] == sample.prompt


def fits(sample: Sample, layer_ids: Sequence[int], exact: PromptStates) -> bool:
    """Whether the states can be compared number by number."""
    rows = exact.stream.shape[1]
    return tuple(sample.states.shape[:2]) == (rows, len(layer_ids))


def whole_sample(
    sample: Sample, layer_ids: Sequence[int], exact: Sequence[PromptStates]
) -> list[Finding]:
    """What is wrong with a sample before any number is looked at."""
    found = []
    if not token_ids_right(sample):
        others = [
            index
            for index, states in enumerate(exact)
            if index != sample.index and states.token_ids == sample.token_ids
        ]
        text = (
            f"the file holds the token ids of request {others[0]}"
            if others
            else "the token ids in the file are not those of the prompt"
        )
        found.append(Finding("token ids", text, sample.index))
    rows, slots = sample.states.shape[:2]
    if slots != len(layer_ids):
        text = f"the file holds {slots} layers where {len(layer_ids)} were asked for"
        found.append(Finding("shape", text, sample.index))
    wanted = max(len(sample.prompt), len(sample.token_ids))
    if rows != wanted:
        text = f"the file holds {rows} rows for {wanted} tokens"
        found.append(Finding("shape", text, sample.index))
    return found
