"""What stands beside the numbers on the report page: versions and the plan."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

from specshim import __version__
from specshim._launch import describe_change
from specshim._plan_types import LaunchPlan, Request
from specshim.detect import (
    Environment,
    ModelFacts,
    ModelNotFound,
    detect_environment,
)
from specshim.detect.hub import model_of_options
from specshim.planning import plan
from specshim.verification.page import Section, render_page, versions_of
from specshim.verification.report import VerifyReport

PLAN_NOTE = (
    "What specshim plans for this model and these layers on the vLLM that the files "
    "name. Other options that the server was given are not known here."
)


def write_page(path: Path, reports: Sequence[VerifyReport]) -> str | None:
    """Write the page of these verifications; a sentence where that is impossible."""
    page = render_page([section(report) for report in reports], _now())
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        return f"The report {path} cannot be written ({error.strerror})."
    return None


def section(report: VerifyReport) -> Section:
    """A verification with the versions and the plan that belong to it."""
    here = detect_environment()
    versions = versions_of(
        report.metadata,
        {
            "specshim here": __version__,
            "Python here": here.python,
            "torch here": here.torch,
            "transformers here": here.transformers,
            "vLLM here": here.vllm,
        },
    )
    planned = list(_plan(report, here))
    return Section(report, versions, planned, PLAN_NOTE if planned else "")


def _plan(report: VerifyReport, here: Environment) -> Iterator[tuple[str, str]]:
    """The plan for the release that made the files; none where none can be made."""
    version = report.metadata.get("vllm") or here.vllm
    if version is None or not report.layer_ids:
        return
    environment = here if version == here.vllm else detect_environment(vllm=version)
    stock = report.metadata.get("route") == "cache"
    request = Request(
        source="launcher",
        route="cache" if stock else "auto",
        layer_ids=report.layer_ids,
        include_last_layer=False,
    )
    try:
        model = model_of_options(report.model, {})
    except ModelNotFound:
        return
    yield from _lines(model, plan(environment, model, request))


def _lines(model: ModelFacts, decision: LaunchPlan) -> Iterator[tuple[str, str]]:
    yield "Model", f"{model.model_type}, {model.num_hidden_layers} layers"
    yield "Kind", model.summary
    for group in model.groups:
        yield "Layers", f"{group.count} {group.kind} ({group.source})"
    yield "Route", decision.route
    yield "Reason", decision.reason
    for change in decision.changes:
        yield "Change", describe_change(change.option, change.value)
        yield "", change.why
    applied = [p.id for p in decision.patches if p.verdict == "APPLY"]
    if applied:
        yield "Hooks and patches", ", ".join(applied)
    for warning in decision.warnings:
        yield "Warning", warning
    if decision.refusal:
        yield "Refused", decision.refusal


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
