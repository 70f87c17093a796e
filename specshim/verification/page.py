"""The report as one HTML page that needs nothing else: no script, font or network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from specshim import __version__
from specshim.verification import charts
from specshim.verification.compare import Comparison
from specshim.verification.report import VerifyReport, layer_cells

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 28px 48px; max-width: 1040px; color: #1c2430;
  background: #fff; font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 6px 0; max-width: 76ch; }
.verdict { display: inline-block; margin: 10px 0 4px; padding: 5px 14px; color: #fff;
  border-radius: 4px; font-weight: 600; font-size: 17px; }
.verdict.right { background: #1a7f37; } .verdict.warning { background: #9a6700; }
.verdict.wrong { background: #b42318; } .verdict.unclear { background: #57606a; }
.found li { margin: 4px 0; }
.note { color: #57606a; font-size: 13.5px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; }
th, td { padding: 3px 12px 3px 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #e4e8ee; overflow-wrap: anywhere; }
th { font-weight: 600; color: #424a53; }
table.numbers { font-variant-numeric: tabular-nums; }
table.numbers th, table.numbers td { text-align: right; white-space: nowrap; }
table.facts th { white-space: nowrap; font-weight: 500; }
td.wrong { color: #b42318; font-weight: 600; } td.warning { color: #9a6700; }
td.right { color: #1a7f37; }
svg { display: block; width: 100%; height: auto; font-size: 11.5px; }
svg text { fill: #424a53; }
.grid { stroke: #e4e8ee; } .axis { stroke: #424a53; }
.bar { fill: #5b8db8; } .bar.wrong { fill: #b42318; } .bar.warning { fill: #c48a1c; }
.bar.unclear { fill: #8c959f; }
.whisker { stroke: #1c2430; fill: none; }
.cell { shape-rendering: crispEdges; }
.limit { stroke: #1a7f37; stroke-width: 2; fill: none; }
.limit.single { stroke-dasharray: 3 2; }
code { font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
@media print {
  body { padding: 0; max-width: none; font-size: 11pt; }
  h2 { break-after: avoid; } svg, tr { break-inside: avoid; }
  .wide { overflow: visible; }
  table.numbers { font-size: 7.5pt; } table.numbers td, table.numbers th {
    padding-right: 5px; }
  .verdict, rect, .bar { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
BARS = (
    "Bar: all rows of a layer together. Line: from the median sample to the worst "
    "single row. Green mark: what is allowed for all rows; dashed: for a single row."
)
READING = (
    "Errors are relative: the length of the difference from the reference, divided by "
    "the length of the reference. 1 is as wrong as zeros; swapped layers or rows of "
    "another request are near 1, or beyond."
)


@dataclass(frozen=True)
class Section:
    """One verification on the page, and what stands beside its numbers.

    ``versions`` and ``plan`` are pairs of name and text, in their order.
    """

    report: VerifyReport
    versions: Sequence[tuple[str, str]] = ()
    plan: Sequence[tuple[str, str]] = ()
    plan_note: str = ""


def render_page(sections: Sequence[Section], made: str) -> str:
    """The whole page. ``made`` is when, in words."""
    title = ", ".join(section.report.model for section in sections)
    body = "\n<hr>\n".join(map(_section, sections))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>specshim verify: {escape(title)}</title>\n<style>{STYLE}</style>\n"
        f"</head>\n<body>\n{body}\n"
        f'<p class="note">Made by specshim {escape(__version__)} on {escape(made)}.'
        "</p>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    report = section.report
    parts = [
        f"<h1>Hidden states of {escape(report.model)}</h1>",
        f'<p class="note">{escape(_about(report))}</p>',
        f'<div class="verdict {report.status}">{escape(report.verdict)}</div>',
    ]
    if report.reason:
        parts.append(f"<p>{escape(report.reason)}</p>")
    sentences = [*report.diagnosis, *report.missing]
    if sentences:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
        parts.append(f'<ul class="found">{items}</ul>')
    if report.comparison is not None:
        parts += _numbers(report.comparison)
    parts += _facts("Versions", section.versions)
    parts += _facts("Plan", section.plan, section.plan_note)
    return "\n".join(parts)


def _about(report: VerifyReport) -> str:
    served = f" (served as {report.served_model})" if report.served_model else ""
    return (
        f"{report.url}{served}: {report.answered} of {report.prompts} random prompts "
        f"(seed {report.seed}) compared with transformers"
    )


def _numbers(comparison: Comparison) -> Iterable[str]:
    if not comparison.layers:
        return
    yield "<h2>Error of each layer</h2>"
    yield charts.error_bars(comparison.layers)
    yield f'<p class="note">{BARS} {READING}</p>'
    yield f"<p>{escape(_sentence(comparison.tolerance))}</p>"
    head, *rows = layer_cells(comparison.layers)
    yield '<div class="wide"><table class="numbers">'
    yield f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"
    for layer, row in zip(comparison.layers, rows, strict=True):
        *cells, verdict = row
        line = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f'<tr>{line}<td class="{layer.status}">{escape(verdict)}</td></tr>'
    yield "</table></div>"
    order = "right" if comparison.order_right else "WRONG"
    yield (
        f"<p>{comparison.rows} rows in {escape(comparison.dtype)}; token ids: "
        f"{comparison.token_ids_right} of {comparison.samples} samples right; order of "
        f"layers: {order}.</p>"
    )
    if comparison.heat is not None:
        found = comparison.heat
        columns = (
            "a column a token"
            if found.step == 1
            else f"a column {found.step} tokens, of which the worst is shown"
        )
        yield f"<h2>Where: the worst sample (prompt {found.sample})</h2>"
        yield charts.heat(found)
        yield charts.legend(charts.decades_below(found))
        yield (
            f'<p class="note">{found.tokens} tokens, {columns}. The colour is the '
            "error as a share of what is allowed for a single row of that layer.</p>"
        )


def _facts(
    title: str, facts: Sequence[tuple[str, str]], note: str = ""
) -> Iterable[str]:
    if not facts:
        return
    yield f"<h2>{escape(title)}</h2>"
    if note:
        yield f'<p class="note">{escape(note)}</p>'
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{_value(name, text)}</td></tr>"
        for name, text in facts
    )
    yield f'<table class="facts">{rows}</table>'


def _value(name: str, text: str) -> str:
    code = name in ("Change", "Command", "Variable")
    return f"<code>{escape(text)}</code>" if code else escape(text)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def versions_of(
    metadata: Mapping[str, str], here: Mapping[str, str | None]
) -> list[tuple[str, str]]:
    """What the files say of the server, and what the comparison was made with."""
    server = [
        (f"Server's {name}", metadata[name])
        for name in ("vllm", "specshim", "route")
        if name in metadata
    ]
    return server + [(name, text) for name, text in here.items() if text]
