"""Charts as an SVG, for pages where no Grafana can be: what the data looked like, not what Grafana would draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from deploy.grafana.chart import Chart, Kind

Points = Sequence[tuple[float, float]]  # time and value, in order
_WIDTH, _HEIGHT, _GAP = 400, 210, 12
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 16, 30, 58
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # of an axis, times a power of ten
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22")
_UNITS = {"s": " s", "ops": "/s", "reqps": "/s"}
_LEGENDS_MAX = 6
_LEGEND_LETTERS_MAX = 19


def picture(charts: Sequence[tuple[Chart, Mapping[str, Points]]], columns: int = 3) -> str:
    """Charts side by side, each with its series by their legends; all over the same time."""
    times = [at for _, series in charts for points in series.values() for at, _ in points]
    span = (min(times), max(times)) if times else (0.0, 1.0)
    rows = math.ceil(len(charts) / columns)
    width, height = columns * (_WIDTH + _GAP) + _GAP, rows * (_HEIGHT + _GAP) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
    ]
    for place, (chart, series) in enumerate(charts):
        x, y = _GAP + place % columns * (_WIDTH + _GAP), _GAP + place // columns * (_HEIGHT + _GAP)
        parts += [f'<g transform="translate({x},{y})">', *_drawn(chart, series, span), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(chart: Chart, series: Mapping[str, Points], span: tuple[float, float]) -> list[str]:
    parts = [
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white" stroke="#d8d9da"/>',
        f'<text x="10" y="19" font-weight="bold">{escape(chart.title)}</text>',
    ]
    values = [value for points in series.values() for _, value in points]
    if not values:
        return parts
    low, high = min(0.0, *values), _rounded_up(max(values))
    if chart.kind is Kind.STATES:
        high = float(len(chart.states) - 1)
    first, last = span

    def across(at: float) -> float:
        return _LEFT + (at - first) / ((last - first) or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    def down(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / ((high - low) or 1.0) * (_HEIGHT - _TOP - _BOTTOM)

    for value in (low, (low + high) / 2, high):
        y = f"{down(value):.0f}"
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#ececec"/>')
        parts.append(
            f'<text x="{_LEFT - 5}" y="{y}" dy="4" text-anchor="end" fill="#666">{_shown(value, chart)}</text>'
        )
    step_s = _rounded_up((last - first) / 4)
    for number in range(5):
        if first + number * step_s <= last:
            x = f"{across(first + number * step_s):.0f}"
            parts.append(
                f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle" fill="#666" font-size="10">'
                f"{number * step_s:.3g} s</text>"
            )
    if chart.red is not None and low <= chart.red <= high and chart.kind is not Kind.STATES:
        y = f"{down(chart.red):.0f}"
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#e02f44" stroke-dasharray="5 4"/>'
        )
    for place, points in enumerate(series.values()):
        line = " ".join(f"{across(at):.0f},{down(value):.0f}" for at, value in points)
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return [*parts, *_legend(list(series))]


def _rounded_up(value: float) -> float:
    """The next number that a person would write at an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * 0.999)


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for place, name in enumerate(names[:_LEGENDS_MAX]):
        x, y = 14 + place % 3 * 128, _HEIGHT - 24 + place // 3 * 15
        short = name if len(name) <= _LEGEND_LETTERS_MAX else name[: _LEGEND_LETTERS_MAX - 1] + "…"
        parts.append(f'<rect x="{x}" y="{y - 8}" width="8" height="8" fill="{_COLOURS[place % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x + 12}" y="{y}" fill="#333" font-size="10">{escape(short)}</text>')
    return parts


def _shown(value: float, chart: Chart) -> str:
    """A number as its axis shows it."""
    if chart.kind is Kind.STATES:
        return chart.states[round(value)][0]
    if chart.unit == "percentunit":
        return f"{value * 100:.3g}%"
    if chart.unit == "bytes":
        return f"{value / 1024 / 1024:.0f} MiB"
    if chart.unit == "s" and 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g}{_UNITS.get(chart.unit, '')}"
