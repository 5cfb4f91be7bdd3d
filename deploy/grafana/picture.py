"""Charts as an SVG, for pages where no Grafana can be: what the data looked like, not what Grafana would draw.

Large panels below each other over the same time, the time of a fault shaded, colours as on the dashboards, and every
name of a legend written out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from deploy.grafana.chart import Chart
from deploy.grafana.meanings import BLUE, GREEN, GREY, RED, colours_by_word

Points = Sequence[tuple[float, float]]  # time and value, in order
_WIDTH, _PLOT_HEIGHT, _GAP = 900, 190, 14
_LEFT, _RIGHT, _TOP = 66, 20, 52
_LEGEND_LINE, _LETTER, _KEY = 20, 7.4, 34  # a line's height; a letter's width, and a key's with the space before a name
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # of an axis, times a power of ten
_PALETTE = (BLUE, GREEN, "#8F3BB8", GREY, "#00838F", "#A0522D")  # of lines that mean nothing in particular
_UNITS = {"s": " s", "ops": "/s", "reqps": "/s"}


@dataclass(frozen=True, slots=True)
class Window:
    """A time that is shaded, and what is written above it."""

    since: float
    until: float
    name: str


@dataclass(frozen=True, slots=True)
class _Scale:
    first: float
    last: float
    high: float

    def across(self, at: float) -> float:
        share = (at - self.first) / ((self.last - self.first) or 1.0)
        return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - _RIGHT)

    def down(self, value: float) -> float:
        return _TOP + _PLOT_HEIGHT - value / self.high * _PLOT_HEIGHT


def picture(charts: Sequence[tuple[Chart, Mapping[str, Points]]], shaded: Window) -> str:
    """Charts below each other, each with its series by their legends."""
    times = [at for _, series in charts for points in series.values() for at, _ in points]
    first, last = (min(times), max(times)) if times else (0.0, 1.0)
    panels, y = [], _GAP
    for chart, series in charts:
        panel, height = _panel(chart, series, (first, last), shaded)
        panels += [f'<g transform="translate({_GAP},{y})">', *panel, "</g>"]
        y += height + _GAP
    width = _WIDTH + 2 * _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{y}" fill="#f4f5f5"/>', *panels, "</svg>"]) + "\n"


def _panel(
    chart: Chart, series: Mapping[str, Points], span: tuple[float, float], shaded: Window
) -> tuple[list[str], int]:
    """What is drawn, and how high it is."""
    colours = _colours(chart, series)
    legend, lines = _legend(series, colours)
    height = _TOP + _PLOT_HEIGHT + 30 + lines * _LEGEND_LINE
    drawn = _stacked(series) if chart.stacked else dict(series)
    values = [value for points in drawn.values() for _, value in points]
    high = _rounded_up(max([*values, (chart.red or 0.0) * 1.1]))
    scale = _Scale(*span, high)
    parts = [
        f'<rect width="{_WIDTH}" height="{height}" fill="white" stroke="#d8d9da"/>',
        f'<text x="14" y="26" font-size="17" font-weight="bold" fill="#222">{escape(chart.title)}</text>',
        *_shade(scale, shaded),
        *_axes(chart, scale),
    ]
    # The last of a stack first: each lies over the ones above it.
    for name, points in reversed(drawn.items()):
        path = " ".join(f"{scale.across(at):.1f},{scale.down(value):.1f}" for at, value in points)
        if chart.stacked and points:
            floor = scale.down(0)
            ends = f"{scale.across(points[-1][0]):.1f},{floor:.1f} {scale.across(points[0][0]):.1f},{floor:.1f}"
            parts.append(f'<polygon points="{path} {ends}" fill="{colours[name]}"/>')
        else:
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2.5"/>')
    return [*parts, *legend], height


def _stacked(series: Mapping[str, Points]) -> dict[str, Points]:
    """Each series on top of those before it."""
    below: dict[float, float] = {}
    stacked: dict[str, Points] = {}
    for name, points in series.items():
        values = dict(points)
        below = {at: below.get(at, 0.0) + values.get(at, 0.0) for at in sorted({*below, *values})}
        stacked[name] = tuple(below.items())
    return stacked


def _shade(scale: _Scale, window: Window) -> list[str]:
    left, right = scale.across(window.since), scale.across(window.until)
    size = f'width="{right - left:.1f}" height="{_PLOT_HEIGHT}"'
    above = f'x="{(left + right) / 2:.1f}" y="{_TOP - 7}" text-anchor="middle"'
    return [
        f'<rect x="{left:.1f}" y="{_TOP}" {size} fill="{RED}" opacity="0.10"/>',
        f'<text {above} fill="{RED}">{escape(window.name)}</text>',
    ]


def _axes(chart: Chart, scale: _Scale) -> list[str]:
    parts = []
    right = _WIDTH - _RIGHT
    for share in (0.0, 0.5, 1.0):
        y, shown = f"{scale.down(share * scale.high):.1f}", _shown(share * scale.high, chart)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="#dedede"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y}" dy="5" text-anchor="end" fill="#555">{shown}</text>')
    step_s = _rounded_up((scale.last - scale.first) / 8)
    for number in range(9):
        if scale.first + number * step_s <= scale.last:
            x = f"{scale.across(scale.first + number * step_s):.1f}"
            below = _TOP + _PLOT_HEIGHT + 18
            parts.append(f'<text x="{x}" y="{below}" text-anchor="middle" fill="#555">{number * step_s:g} s</text>')
    if chart.red is not None and chart.red <= scale.high:
        y = f"{scale.down(chart.red):.1f}"
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="{RED}" stroke-dasharray="6 5"/>')
    return parts


def _colours(chart: Chart, series: Mapping[str, Points]) -> dict[str, str]:
    by_word = colours_by_word([query.legend for query in chart.queries])
    names = list(series)
    others = [name for name in names if name.split()[-1] not in by_word]
    if chart.colour is not None:
        return dict.fromkeys(names, chart.colour) if len(names) == 1 else _shades(chart.colour, names)
    return {name: by_word.get(name.split()[-1]) or _PALETTE[others.index(name) % len(_PALETTE)] for name in names}


def _shades(colour: str, names: Sequence[str]) -> dict[str, str]:
    """From the colour itself to half of its light."""
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return {
        name: "#" + "".join(f"{round(part * (1 - 0.5 * place / (len(names) - 1))):02X}" for part in parts)
        for place, name in enumerate(names)
    }


def _rounded_up(value: float) -> float:
    """The next number that a person would write at an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * 0.999)


def _legend(names: Mapping[str, Points], colours: Mapping[str, str]) -> tuple[list[str], int]:
    """Every name written out, in as many lines as they need."""
    parts, x, line = [], float(_LEFT), 0
    for name in names:
        wide = _KEY + len(name) * _LETTER
        if x > _LEFT and x + wide > _WIDTH - _RIGHT:
            x, line = float(_LEFT), line + 1
        y = _TOP + _PLOT_HEIGHT + 42 + line * _LEGEND_LINE
        parts.append(f'<rect x="{x:.0f}" y="{y - 10}" width="12" height="12" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 18:.0f}" y="{y}" fill="#222">{escape(name)}</text>')
        x += wide
    return parts, line + 1 if parts else 0


def _shown(value: float, chart: Chart) -> str:
    """A number as its axis shows it."""
    if chart.unit == "percentunit":
        return f"{value * 100:.3g}%"
    if chart.unit == "s" and 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g}{_UNITS.get(chart.unit, '')}"
