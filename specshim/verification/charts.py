"""The drawings of the report page, as inline SVG: error bars and the heat map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from specshim.verification.compare import LayerResult
from specshim.verification.heat import HeatMap

WIDTH = 920
_LEFT, _RIGHT = 64, 20  # for labels
_LINE, _THIN = 22, 14  # height of a layer, and where there are many
_MANY = 24
_FLOOR = 1e-9  # smaller errors are drawn here

# What is allowed ends at 1: pale to blue below, orange to dark red above.
_BELOW = ((236, 242, 249), (33, 102, 172))
_ABOVE = ((253, 174, 97), (153, 0, 13))
_DECADES_ABOVE = 2
_MOST_DECADES = 7
_BROKEN = "#000000"  # rows that are zero, NaN or infinite


def error_bars(layers: Sequence[LayerResult]) -> str:
    """A line a layer, errors to the right on a logarithmic scale.

    The bar is the error of all rows together, the whisker goes from the median
    sample to the worst single row, and the two marks are what is allowed for either.
    """
    values = [v for layer in layers for v in _values(layer) if math.isfinite(v)]
    least = min([v for v in values if v > 0], default=1e-2)
    low = math.floor(math.log10(max(min(least, 1e-2), _FLOOR))) - 1
    high = math.ceil(math.log10(max([*values, 1e-2]) * 1.01))
    scale = _scale(low, high)
    line = _line(len(layers))
    height = line * len(layers)
    parts = list(_axis(low, high, scale, height))
    for place, layer in enumerate(layers):
        parts += _bar(layer, place * line, line, scale)
    label = "Relative error of each layer on a logarithmic scale"
    return _svg(height + 34, parts, label)


def heat(found: HeatMap) -> str:
    """Layers downwards, tokens to the right, the error as a colour."""
    lines = len(found.layer_ids)
    line = _line(lines)
    below = decades_below(found)
    width = (WIDTH - _LEFT - _RIGHT) / len(found.errors[0])
    parts = []
    for slot, (layer_id, row) in enumerate(
        zip(found.layer_ids, found.errors, strict=True)
    ):
        top = slot * line
        parts.append(_text(_LEFT - 8, top + line / 2 + 4, f"id {layer_id}", "end"))
        for column, error in enumerate(row):
            first, last = found.tokens_of(column)
            tokens = f"token {first}" if first == last else f"tokens {first} to {last}"
            limit = found.limits[slot]
            zero = (slot, column) in found.zeros
            fill = _BROKEN if zero else colour(error / limit, below)
            said = f"{error:.1e}{', zero' if zero else ''} (allowed {limit:.1e})"
            parts.append(
                f'<rect class="cell" x="{_LEFT + column * width:.2f}" y="{top}" '
                f'width="{width:.2f}" height="{line}" fill="{fill}">'
                f"<title>{tokens}, id {layer_id}: {said}</title></rect>"
            )
    height = lines * line
    for tick in _ticks(found.tokens):
        at = _LEFT + (WIDTH - _LEFT - _RIGHT) * (tick + 0.5) / found.tokens
        parts.append(f'<path class="axis" d="M{at:.1f} {height}v5"/>')
        parts.append(_text(at, height + 18, str(tick), "middle"))
    parts.append(_text(_LEFT - 8, height + 18, "token", "end"))
    label = f"Relative error of each token and layer of sample {found.sample}"
    return _svg(height + 26, parts, label)


def decades_below(found: HeatMap) -> int:
    """How many decades below what is allowed the palest colour stands for."""
    shares = [
        error / limit
        for row, limit in zip(found.errors, found.limits, strict=True)
        for error in row
        if error > 0
    ]
    least = min(shares, default=1.0)
    return min(_MOST_DECADES, max(1, math.ceil(-math.log10(least))))


def legend(below: int) -> str:
    """The colours of the heat map with what they mean."""
    parts, steps = [], 48
    for step in range(steps):
        decades = (below + _DECADES_ABOVE) * (step + 0.5) / steps - below
        parts.append(
            f'<rect class="cell" x="{_LEFT + step * 8}" y="0" width="8" height="12" '
            f'fill="{colour(10**decades, below)}"/>'
        )
    end = _LEFT + 8 * steps
    at_one = _LEFT + (end - _LEFT) * below / (below + _DECADES_ABOVE)
    parts += [
        f'<path class="axis" d="M{at_one:.1f} 0v17"/>',
        _text(_LEFT, 28, f"allowed / {10**below:,}", "start"),
        _text(at_one, 28, "allowed", "middle"),
        _text(end, 28, f"allowed x {10**_DECADES_ABOVE}", "middle"),
        f'<rect x="{end + 84}" y="0" width="16" height="12" fill="{_BROKEN}"/>',
        _text(end + 108, 11, "zero, NaN or infinite", "start"),
    ]
    return _svg(34, parts, "What the colours mean")


def colour(share: float, below: int) -> str:
    """Of an error, as a share of what is allowed; ``below`` decades of it are told."""
    if not math.isfinite(share):
        return _BROKEN
    decades = math.log10(max(share, 1e-30))
    if decades <= 0:
        return _between(*_BELOW, 1 + decades / below)
    return _between(*_ABOVE, decades / _DECADES_ABOVE)


def _between(
    low: tuple[int, int, int], high: tuple[int, int, int], share: float
) -> str:
    share = min(1.0, max(0.0, share))
    mixed = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _values(layer: LayerResult) -> tuple[float, ...]:
    return (
        layer.total,
        layer.median,
        layer.worst_row,
        layer.limits.right,
        layer.limits.row,
    )


def _scale(low: int, high: int) -> Callable[[float], float]:
    def place(value: float) -> float:
        if not value < 10.0**high:  # infinite, too
            return float(WIDTH - _RIGHT)
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * share

    return place


def _axis(
    low: int, high: int, scale: Callable[[float], float], height: int
) -> Iterator[str]:
    for power in range(low, high + 1):
        at = scale(10.0**power) if power < high else WIDTH - _RIGHT
        yield f'<path class="grid" d="M{at:.1f} 0v{height}"/>'
        yield _text(at, height + 16, f"1e{power}", "middle")
    yield _text(_LEFT - 26, height + 16, "error", "end")


def _bar(
    layer: LayerResult, top: int, line: int, scale: Callable[[float], float]
) -> Iterator[str]:
    middle = top + line / 2
    end, worst = scale(layer.total), scale(layer.worst_row)
    yield _text(_LEFT - 8, middle + 4, f"id {layer.layer_id}", "end")
    yield (
        f'<rect class="bar {layer.status}" x="{_LEFT}" y="{top + line // 4}" '
        f'width="{max(1.0, end - _LEFT):.1f}" height="{line - 2 * (line // 4)}">'
        f"<title>{escape(_told(layer))}</title></rect>"
    )
    yield (
        f'<path class="whisker" d="M{scale(layer.median):.1f} {middle}H{worst:.1f}'
        f'M{worst:.1f} {middle - 4}v8"/>'
    )
    allowed, single = scale(layer.limits.right), scale(layer.limits.row)
    yield f'<path class="limit" d="M{allowed:.1f} {top + 2}v{line - 4}"/>'
    yield f'<path class="limit single" d="M{single:.1f} {top + 2}v{line - 4}"/>'


def _line(layers: int) -> int:
    return _LINE if layers <= _MANY else _THIN


def _told(layer: LayerResult) -> str:
    return (
        f"id {layer.layer_id}: all rows {layer.total:.1e} (allowed "
        f"{layer.limits.right:.1e}), worst row {layer.worst_row:.1e} (allowed "
        f"{layer.limits.row:.1e})"
    )


def _ticks(count: int) -> list[int]:
    """Some round numbers from 0 to ``count`` - 1."""
    step = next(
        base * 10**power
        for power in range(12)
        for base in (1, 2, 5)
        if count <= 12 * base * 10**power
    )
    return list(range(0, count, step))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
