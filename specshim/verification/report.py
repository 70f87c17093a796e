"""The result of a verification: as data, as text for a bug report, as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specshim.verification.compare import (
    RIGHT,
    UNCLEAR,
    WARNING,
    WRONG,
    Comparison,
    LayerResult,
)
from specshim.verification.diagnose import Finding

EXIT_CODES: Mapping[str, int] = {RIGHT: 0, WARNING: 0, WRONG: 1, UNCLEAR: 2}
_VERDICTS = {
    RIGHT: "right",
    WARNING: "right, with a warning",
    WRONG: "WRONG",
    UNCLEAR: "could not tell",
}
_TOLERATED = (
    "some rows are far from the reference, no more of them than half precision alone "
    "moves so far (in mixtures of experts it flips routers)"
)


@dataclass(frozen=True)
class VerifyReport:
    """One verification. ``status`` is right, warning, wrong or unclear."""

    status: str
    url: str
    model: str
    prompts: int
    seed: int
    served_model: str | None = None
    answered: int = 0
    layer_ids: tuple[int, ...] = ()
    layer_ids_from: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # sentences
    comparison: Comparison | None = None
    diagnosis: tuple[str, ...] = ()  # sentences
    reason: str | None = None  # why it could not tell

    @property
    def exit_code(self) -> int:
        """0 right, 1 wrong, 2 could not tell."""
        return EXIT_CODES[self.status]

    @property
    def verdict(self) -> str:
        """The status in words."""
        return _VERDICTS[self.status]


def diagnosis(findings: Sequence[Finding]) -> tuple[str, ...]:
    """One sentence per thing that is off, the same thing in many samples told once."""
    sentences = list(_wrong_order(findings))
    groups: dict[tuple[str, str, int | None], list[Finding]] = {}
    for finding in findings:
        slot = None if finding.kind == "broadcast" else finding.slot
        groups.setdefault((finding.kind, finding.text, slot), []).append(finding)
    for (_, text, slot), group in groups.items():
        first = group[0]
        subject = "" if slot is None else f"id {first.layer_id}: "
        sentence = f"{subject}{text if first.wrong else _TOLERATED}{_where(group)}"
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
    return tuple(sentences)


def _wrong_order(findings: Sequence[Finding]) -> list[str]:
    """The sentence for layers that hold each other's states."""
    holds: dict[int, int] = {}
    for finding in findings:
        if finding.kind == "other layer" and finding.layer_id is not None:
            holds[finding.layer_id] = finding.other or 0
    swapped = sorted(a for a, b in holds.items() if b in holds)
    if len(swapped) < 2:
        return []
    if len(swapped) == 2:
        return [f"Layers are swapped: ids {swapped[0]} and {swapped[1]}."]
    found = [holds[layer_id] for layer_id in swapped]
    return [f"Layers are in another order: ids {swapped} hold those of {found}."]


def _where(group: Sequence[Finding]) -> str:
    samples = sorted({finding.sample for finding in group})
    rows = sum(len(finding.rows) for finding in group)
    first = group[0]
    if not rows:
        return f" ({_count(len(samples), 'sample')}, first {samples[0]})"
    return (
        f" ({_count(rows, 'row')} in {_count(len(samples), 'sample')}, first: sample "
        f"{first.sample}, row {first.rows[0]})"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def render_text(report: VerifyReport) -> str:
    """``Key: value`` lines, a table of layers, what was found, the verdict."""
    lines = [f"Server: {report.url}", f"Model: {report.model}"]
    if report.served_model:
        lines.append(f"Served as: {report.served_model}")
    for key in ("vllm", "specshim", "route", "model"):
        if key in report.metadata:
            lines.append(f"File says {key}: {report.metadata[key]}")
    if report.layer_ids:
        ids = " ".join(map(str, report.layer_ids))
        lines.append(f"Layer ids: {ids} (from {report.layer_ids_from})")
    lines.append(
        f"Prompts: {report.answered} of {report.prompts} compared (seed {report.seed})"
    )
    lines += [f"Missing: {sentence}" for sentence in report.missing]
    if report.comparison is not None:
        lines += _comparison_lines(report.comparison)
    lines += [f"Found: {sentence}" for sentence in report.diagnosis]
    if report.reason:
        lines.append(f"Reason: {report.reason}")
    lines.append(f"Verdict: {report.verdict}")
    return "\n".join(lines)


def _comparison_lines(comparison: Comparison) -> list[str]:
    right, total = comparison.token_ids_right, comparison.samples
    return [
        f"Rows: {comparison.rows} in {comparison.dtype}",
        f"Token ids: {right} of {total} right",
        f"Order: {'right' if comparison.order_right else 'WRONG'}",
        f"Tolerance: {comparison.tolerance}",
        *layer_table(comparison.layers),
    ]


def layer_table(layers: Sequence[LayerResult]) -> list[str]:
    """One line per layer, errors relative, after a line of titles."""
    return table(layer_cells(layers))


def layer_cells(layers: Sequence[LayerResult]) -> list[tuple[str, ...]]:
    """The titles, and the numbers of each layer as text."""
    rows: list[tuple[str, ...]] = [
        (
            "layer",
            "worst",
            "median",
            "all rows",
            "allowed",
            "worst row",
            "allowed",
            "at sample:row",
            "cosine",
            "zero rows",
            "nearest",
            "verdict",
        )
    ]
    for layer in layers:
        sample, row = layer.worst_row_at
        rows.append(
            (
                str(layer.layer_id),
                f"{layer.worst:.1e}",
                f"{layer.median:.1e}",
                f"{layer.total:.1e}",
                f"{layer.limits.right:.1e}",
                f"{layer.worst_row:.1e}",
                f"{layer.limits.row:.1e}",
                f"{sample}:{row}",
                f"{layer.worst_cosine:.5f}",
                str(layer.zero_rows),
                str(layer.nearest_layer),
                _VERDICTS[layer.status],
            )
        )
    return rows


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of right-aligned columns; all rows have as many cells as the first."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def to_json(report: VerifyReport) -> dict[str, Any]:
    """All numbers but the heat map's, as JSON can hold them (infinity as a string)."""
    content = dataclasses.asdict(report)
    if content["comparison"] is not None:
        del content["comparison"]["heat"]
    content["metadata"] = dict(report.metadata)
    content["exit_code"] = report.exit_code
    cleaned: dict[str, Any] = _plain(content)
    return cleaned


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
