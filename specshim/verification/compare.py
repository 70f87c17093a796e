"""Compare what a server delivered with the reference, layer by layer and row by row.

Pure functions over tensors: no file, no network, no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from specshim.reference import PromptStates
from specshim.verification.collect import Sample
from specshim.verification.diagnose import Finding, diagnose
from specshim.verification.errors import (
    indices,
    row_cosines,
    row_errors,
    total_error,
)
from specshim.verification.heat import HeatMap, heat_map
from specshim.verification.shape import (
    check_inputs,
    fits,
    token_ids_right,
    whole_sample,
)
from specshim.verification.tolerance import (
    ROW_FACTOR,
    Limits,
    explain,
    float32_limits,
    half_limits,
)

if TYPE_CHECKING:
    from torch import Tensor

RIGHT, WARNING, UNCLEAR, WRONG = "right", "warning", "unclear", "wrong"
_SEVERITY = (RIGHT, WARNING, UNCLEAR, WRONG)


@dataclass(frozen=True)
class LayerResult:
    """One requested layer over all samples; errors are relative."""

    slot: int  # place in the file
    layer_id: int
    status: str
    worst: float  # of a sample, all its rows together
    worst_sample: int
    median: float
    total: float  # all rows of all samples together
    typical_row: float  # the median over all rows
    worst_row: float
    worst_row_at: tuple[int, int]  # sample, row
    worst_cosine: float
    zero_rows: int
    bad_rows: int  # beyond the limit for a single row
    nearest_layer: int  # whose reference is nearest to what came
    same_dtype: float | None  # distance to the reference in the server's dtype
    limits: Limits


@dataclass(frozen=True)
class Comparison:
    """All layers, what was found, and the verdict: right, warning, unclear or wrong."""

    status: str
    dtype: str
    rows: int
    token_ids_right: int
    samples: int
    order_right: bool
    tolerance: str
    layers: tuple[LayerResult, ...]
    findings: tuple[Finding, ...]
    heat: HeatMap | None = None  # of the sample with the row that is off the most


def compare(
    samples: Sequence[Sample],
    layer_ids: Sequence[int],
    exact: Sequence[PromptStates],
    rounded: Sequence[PromptStates] | None = None,
) -> Comparison:
    """Judge ``samples`` by the reference of their prompts.

    Args:
        samples: at least one, all of one dtype, ``[rows, len(layer_ids), hidden]``.
        layer_ids: in the order of the files' second axis.
        exact: the float32 reference, one entry per prompt, found by ``Sample.index``.
        rounded: the reference in the samples' dtype; needed unless that is float32.

    Raises:
        ValueError: samples and references do not fit together, for example
            because they are of different models.
    """
    dtype = check_inputs(samples, layer_ids, exact, rounded)
    findings = []
    for sample in samples:
        findings += whole_sample(sample, layer_ids, exact)
    usable = [s for s in samples if fits(s, layer_ids, exact[s.index])]
    layers = []
    farthest = [0.0] * len(usable)  # of each sample's rows, as a share of what may be
    for slot, layer_id in enumerate(layer_ids):
        if not usable:
            break
        layer, found, worst_rows = _layer(slot, layer_id, usable, exact, rounded)
        layers.append(layer)
        findings += found
        shares = [worst / layer.limits.row for worst in worst_rows]
        farthest = [max(pair) for pair in zip(farthest, shares, strict=True)]
    findings += diagnose(
        usable,
        layer_ids,
        exact,
        [layer.limits.row for layer in layers],
        [layer.slot for layer in layers if layer.nearest_layer != layer.layer_id],
    )
    findings = _allow_noise(findings, layers)
    layers = [_settle(layer, findings) for layer in layers]
    statuses = [layer.status for layer in layers]
    if any(finding.wrong for finding in findings):
        statuses.append(WRONG)
    return Comparison(
        status=max(statuses, key=_SEVERITY.index),
        dtype=dtype,
        rows=sum(sample.states.shape[0] for sample in usable),
        token_ids_right=sum(token_ids_right(sample) for sample in samples),
        samples=len(samples),
        order_right=bool(layers)
        and all(layer.nearest_layer == layer.layer_id for layer in layers),
        tolerance=explain(dtype, [layer.limits for layer in layers]) if layers else "",
        layers=tuple(layers),
        findings=tuple(findings),
        heat=_heat(usable, layers, exact, farthest) if layers else None,
    )


def _heat(
    samples: Sequence[Sample],
    layers: Sequence[LayerResult],
    exact: Sequence[PromptStates],
    farthest: Sequence[float],
) -> HeatMap:
    """The map of the sample whose worst row is the farthest, row errors made anew."""
    sample = samples[max(range(len(samples)), key=farthest.__getitem__)]
    errors, zeros = [], []
    for layer in layers:
        received = sample.states[:, layer.slot].float()
        wanted = exact[sample.index].stream[layer.layer_id]
        errors.append(row_errors(received, wanted).tolist())
        zeros.append(_zero_rows(received, wanted))
    return heat_map(
        sample.index,
        [layer.layer_id for layer in layers],
        [layer.limits.row for layer in layers],
        errors,
        zeros,
    )


def _layer(
    slot: int,
    layer_id: int,
    samples: Sequence[Sample],
    exact: Sequence[PromptStates],
    rounded: Sequence[PromptStates] | None,
) -> tuple[LayerResult, list[Finding], list[float]]:
    """The result, what was found, and each sample's worst row."""
    import torch

    received = [sample.states[:, slot].float() for sample in samples]
    references = [exact[sample.index] for sample in samples]
    wanted = [reference.stream[layer_id] for reference in references]
    errors = [row_errors(r, w) for r, w in zip(received, wanted, strict=True)]
    totals = [total_error(r, w) for r, w in zip(received, wanted, strict=True)]
    all_received, all_wanted = torch.cat(received), torch.cat(wanted)
    limits, same_dtype = float32_limits(), None
    if rounded is not None and samples[0].dtype != "float32":
        all_rounded = torch.cat([rounded[s.index].stream[layer_id] for s in samples])
        limits = half_limits(
            samples[0].dtype,
            total_error(all_rounded, all_wanted),
            row_errors(all_rounded, all_wanted).tolist(),
        )
        same_dtype = total_error(all_received, all_rounded)
    worst = max(range(len(samples)), key=lambda n: totals[n])
    at = max(range(len(samples)), key=lambda n: errors[n].max().item())
    zero_rows = 0
    findings: list[Finding] = []
    for n, sample in enumerate(samples):
        zeros = _zero_rows(received[n], wanted[n])
        zero_rows += len(zeros)
        if zeros:
            text = "rows are zero"
            findings.append(
                Finding("zero rows", text, sample.index, layer_id, slot, zeros)
            )
        broken = indices(~received[n].isfinite().all(-1))
        if broken:
            text = "rows hold NaN or infinity"
            findings.append(
                Finding("not finite", text, sample.index, layer_id, slot, broken)
            )
    layer = LayerResult(
        slot=slot,
        layer_id=layer_id,
        status=RIGHT,
        worst=totals[worst],
        worst_sample=samples[worst].index,
        median=median(totals),
        total=total_error(all_received, all_wanted),
        typical_row=torch.cat(errors).median().item(),
        worst_row=errors[at].max().item(),
        worst_row_at=(samples[at].index, int(errors[at].argmax())),
        worst_cosine=row_cosines(all_received, all_wanted).min().item(),
        zero_rows=zero_rows,
        bad_rows=sum(int((e > limits.row).sum()) for e in errors),
        nearest_layer=_nearest(received, references, layer_id),
        same_dtype=same_dtype,
        limits=limits,
    )
    return layer, findings, [sample_errors.max().item() for sample_errors in errors]


def _allow_noise(
    findings: Sequence[Finding], layers: Sequence[LayerResult]
) -> list[Finding]:
    """Unexplained rows are no fault where half precision alone gives as many."""
    allowed = {
        layer.slot
        for layer in layers
        if _unexplained(findings, layer) <= layer.limits.loose_rows
        or not layer.limits.decidable
    }
    return [
        replace(finding, wrong=False)
        if finding.kind == "unexplained" and finding.slot in allowed
        else finding
        for finding in findings
    ]


def _unexplained(findings: Sequence[Finding], layer: LayerResult) -> int:
    return sum(
        len(finding.rows)
        for finding in findings
        if finding.kind == "unexplained" and finding.slot == layer.slot
    )


def _zero_rows(received: Tensor, wanted: Tensor) -> tuple[int, ...]:
    zero = (received == 0).all(-1) & (wanted != 0).any(-1)
    return indices(zero)


def _nearest(
    received: Sequence[Tensor], exact: Sequence[PromptStates], own: int
) -> int:
    """The layer whose reference is nearest, by the median over rows.

    The own layer wins unless another is clearly nearer.
    """
    import torch

    medians = []
    for layer_id in range(exact[0].stream.shape[0]):
        errors = [
            row_errors(r, states.stream[layer_id])
            for r, states in zip(received, exact, strict=True)
        ]
        medians.append(torch.cat(errors).median().item())
    best = min(range(len(medians)), key=medians.__getitem__)
    return best if medians[best] < 0.5 * medians[own] else own


def _beyond_rounding(layer: LayerResult) -> bool:
    """Whether a sample or a row of a float32 server differs more than it should."""
    right = layer.limits.right
    return layer.limits.measured is None and (
        layer.worst > right or layer.worst_row > right * ROW_FACTOR
    )


def _settle(layer: LayerResult, findings: Sequence[Finding]) -> LayerResult:
    """The layer's status from its numbers and from what was found in it."""
    limits = layer.limits
    if (
        layer.nearest_layer != layer.layer_id
        or layer.zero_rows
        or any(f.wrong and f.slot == layer.slot for f in findings)
    ):
        status = WRONG
    elif (
        layer.bad_rows > limits.loose_rows
        or not layer.total <= limits.bound
        or not layer.typical_row <= limits.typical
    ):
        status = WRONG if limits.decidable else UNCLEAR
    elif layer.bad_rows or layer.total > limits.right or _beyond_rounding(layer):
        status = WARNING
    else:
        status = RIGHT
    return replace(layer, status=status)
