"""What the demo reports: one result a model, as a table and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specshim.verification.report import VerifyReport, table, to_json


@dataclass(frozen=True)
class DemoResult:
    """What became of one model."""

    model: str
    kind: str
    dtype: str
    folder: str
    start_seconds: float | None = None
    report: VerifyReport | None = None
    failure: str | None = None  # a sentence
    log: str | None = None
    log_end: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 right, 1 wrong, 2 could not tell."""
        return 2 if self.report is None else self.report.exit_code


def render(results: Sequence[DemoResult], left_out: Sequence[str]) -> list[str]:
    """The result table, and below it a line for whatever is not right."""
    lines = table(
        [
            (
                "model",
                "kind",
                "dtype",
                "prompts",
                "rows",
                "layers",
                "worst error",
                "allowed",
                "zero rows",
                "order",
                "verdict",
            ),
            *[_cells(result) for result in results],
        ]
    )
    lines += [f"Left out: {sentence}" for sentence in left_out]
    for result in results:
        report = result.report
        if report is not None:
            lines += [f"{result.model}: {sentence}" for sentence in report.diagnosis]
            lines += [f"{result.model}: {sentence}" for sentence in report.missing]
        if result.failure:
            lines.append(f"{result.model}: {result.failure}")
            lines += [f"  | {line}" for line in result.log_end]
            if result.log:
                lines.append(f"{result.model}: the server's log is {result.log}")
    return lines


def _cells(result: DemoResult) -> tuple[str, ...]:
    head = (result.model, result.kind, result.dtype)
    report = result.report
    if report is None or report.comparison is None:
        return (*head, *["-"] * 7, "could not tell")
    comparison = report.comparison
    worst = max(
        comparison.layers,
        key=lambda layer: layer.total / layer.limits.right,
        default=None,
    )
    return (
        *head,
        f"{report.answered}/{report.prompts}",
        str(comparison.rows),
        " ".join(map(str, report.layer_ids)),
        f"{worst.total:.1e}" if worst else "-",
        f"{worst.limits.right:.1e}" if worst else "-",
        str(sum(layer.zero_rows for layer in comparison.layers)),
        "right" if comparison.order_right else "WRONG",
        report.verdict,
    )


def results_json(
    results: Sequence[DemoResult], left_out: Sequence[str], code: int
) -> dict[str, Any]:
    """The demo as JSON: every model with its whole verification."""
    entries = []
    for result in results:
        entry = dataclasses.asdict(dataclasses.replace(result, report=None))
        entry["report"] = None if result.report is None else to_json(result.report)
        entries.append(entry)
    return {"exit_code": code, "left_out": list(left_out), "results": entries}
