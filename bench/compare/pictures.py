"""Small SVG pictures, without a library: bars by lane, and lines over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

OURS, PEER, SECOND = "#0a7d55", "#7a8794", "#c2410c"
# Colour and dashes: who sees no colours can tell the lines apart, too.
STROKES = (
    ("#0a7d55", ""),
    ("#0a7d55", "7 4"),
    ("#2563eb", ""),
    ("#9333ea", "7 4"),
    ("#c2410c", "2 3"),
    ("#7a8794", ""),
)
_FONT = 'font-family="sans-serif" font-size="12"'
_WIDTH, _LABEL, _ROW, _TOP = 720, 210, 18, 44
_KEYS_HIGH, _KEY_WIDE = 18, 236  # of a line of the legend, and of one of its three columns
_COLUMNS = 3


def bars(title: str, rows: Sequence[tuple[str, Sequence[float], bool]], kinds: Sequence[str], unit: str = "") -> str:
    """A row a lane, with one bar for each kind; ours are coloured. What never comes (infinite) is told in words."""
    finite = (value for _, values, _ in rows for value in values if math.isfinite(value))
    most = max(finite, default=0.0) or 1.0
    top = _TOP + (_KEYS_HIGH if len(kinds) > 1 else 0)
    high = _ROW * len(kinds) + 6
    drawn = list(_kinds(kinds)) if len(kinds) > 1 else []
    for number, (label, values, ours) in enumerate(rows):
        row_top = top + number * high
        drawn.append(_text(_LABEL - 8, row_top + high / 2 + 1, label, "end", bold=ours))
        for place, value in enumerate(values):
            length = (_WIDTH - _LABEL - 70) * (value / most if math.isfinite(value) else 0.0)
            colour = SECOND if place else OURS if ours else PEER
            y = row_top + place * _ROW + 2
            drawn.append(f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_ROW - 4}" fill="{colour}"/>')
            drawn.append(_text(_LABEL + length + 5, y + 11, _told(value, unit)))
    return _picture(title, drawn, top + len(rows) * high + 8)


def _told(value: float, unit: str) -> str:
    if math.isnan(value):
        return "not measured"
    return "never in this run" if math.isinf(value) else f"{value:g}{unit}"


def _kinds(kinds: Sequence[str]) -> Iterator[str]:
    """Which bar is which: ours and the peers' first ones differ in colour, so both are shown."""
    x = 12.0
    for place, kind in enumerate(kinds):
        for colour in (SECOND,) if place else (OURS, PEER):
            yield f'<rect x="{x:.1f}" y="36" width="12" height="12" fill="{colour}"/>'
            x += 16
        yield _text(x, 46, kind)
        x += 24 + 7 * len(kind)


def lines(title: str, by_lane: Mapping[str, Sequence[float]], trouble_s: tuple[float, float], trouble: str) -> str:
    """Requests a second at the provider; the time of trouble is shaded."""
    height, left, right = 300, 46, _WIDTH - 12
    bottom = height - 24
    seconds = max((len(values) for values in by_lane.values()), default=1) - 1 or 1
    most = max((value for values in by_lane.values() for value in values), default=1.0) or 1.0

    def x(at_s: float) -> float:
        return left + (right - left) * at_s / seconds

    def y(value: float) -> float:
        return bottom - (bottom - _TOP) * value / most

    begin, end = (x(at_s) for at_s in trouble_s)
    drawn = [
        f'<rect x="{begin:.1f}" y="{_TOP}" width="{end - begin:.1f}" height="{bottom - _TOP}" fill="#f3e8e2"/>',
        _text((begin + end) / 2, _TOP - 4, trouble, "middle", colour="#8a5a44"),
    ]
    for value in _ticks(most):
        drawn.append(f'<path d="M{left} {y(value):.1f}H{right}" stroke="#d5dbe1" stroke-width="1"/>')
        drawn.append(_text(left - 6, y(value) + 4, f"{value:g}", "end"))
    for at_s in range(0, seconds + 1, 5):
        drawn.append(_text(x(at_s), bottom + 16, f"{at_s} s", "middle"))
    for number, (label, values) in enumerate(by_lane.items()):
        colour, dashes = STROKES[number % len(STROKES)]
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        stroke = f'fill="none" stroke="{colour}" stroke-width="2"{dashed}'
        points = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in enumerate(values))
        drawn.append(f'<polyline points="{points}" {stroke}/>')
        key_x, key_y = 16 + _KEY_WIDE * (number % _COLUMNS), height + 8 + _KEYS_HIGH * (number // _COLUMNS)
        drawn.append(f'<path d="M{key_x} {key_y}h30" {stroke}/>')
        drawn.append(_text(key_x + 36, key_y + 4, label, colour=colour))
    return _picture(title, drawn, height + 8 + _KEYS_HIGH * math.ceil(len(by_lane) / _COLUMNS))


def _ticks(most: float) -> Iterator[float]:
    """Round numbers from zero: four to eight of them."""
    step = 10.0 ** math.floor(math.log10(most))
    step = next(part for part in (step / 5, step / 2, step, 2 * step) if most / part <= 8)
    number = 0
    while number * step <= most:
        yield number * step
        number += 1


def _text(x: float, y: float, text: str, anchor: str = "start", *, bold: bool = False, colour: str = "#1f2933") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight} {_FONT}>{escape(text)}</text>'


def _picture(title: str, drawn: Sequence[str], height: float) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">'
    ground = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    name = f"<title>{escape(title)}</title>"
    return "\n".join([head, name, ground, _text(12, 24, title, bold=True), *drawn, "</svg>"]) + "\n"
