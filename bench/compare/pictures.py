"""Small SVG pictures, without a library: bars by lane, and lines over time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

OURS, PEER, SECOND = "#0a7d55", "#7a8794", "#c2410c"
COLOURS = ("#0a7d55", "#72b01d", "#9333ea", "#2563eb", "#c2410c", "#7a8794")
_FONT = 'font-family="sans-serif" font-size="12"'
_WIDTH, _LABEL, _ROW, _TOP = 720, 210, 18, 44


def bars(title: str, rows: Sequence[tuple[str, Sequence[float], bool]], kinds: Sequence[str], unit: str = "") -> str:
    """A row a lane, with one bar for each kind; ours are coloured."""
    most = max((value for _, values, _ in rows for value in values), default=0.0) or 1.0
    high = _ROW * len(kinds) + 6
    drawn = []
    for number, (label, values, ours) in enumerate(rows):
        top = _TOP + number * high
        drawn.append(_text(_LABEL - 8, top + high / 2 + 1, label, "end", bold=ours))
        for place, value in enumerate(values):
            length = (_WIDTH - _LABEL - 70) * value / most
            colour = SECOND if place else OURS if ours else PEER
            y = top + place * _ROW + 2
            drawn.append(f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_ROW - 4}" fill="{colour}"/>')
            drawn.append(_text(_LABEL + length + 5, y + 11, f"{value:g}{unit}"))
    heading = title if len(kinds) == 1 else f"{title}: {', '.join(kinds)}"
    return _picture(heading, drawn, _TOP + len(rows) * high + 8)


def lines(title: str, by_lane: Mapping[str, Sequence[float]], trouble_s: tuple[float, float]) -> str:
    """Requests a second at the provider; the time of trouble is shaded."""
    height, left, right = 300, 46, _WIDTH - 12
    seconds = max((len(values) for values in by_lane.values()), default=1) - 1 or 1
    most = max((value for values in by_lane.values() for value in values), default=1.0) or 1.0

    def x(at_s: float) -> float:
        return left + (right - left) * at_s / seconds

    def y(value: float) -> float:
        return height - 24 - (height - 24 - _TOP) * value / most

    begin, end = (x(at_s) for at_s in trouble_s)
    drawn = [
        f'<rect x="{begin:.1f}" y="{_TOP}" width="{end - begin:.1f}" height="{height - 24 - _TOP}" fill="#f3e8e2"/>',
        _text(left - 6, y(most) + 4, f"{most:g}", "end"),
        _text(left - 6, y(0) + 4, "0", "end"),
        _text(left, height - 8, "0 s"),
        _text(right, height - 8, f"{seconds} s", "end"),
    ]
    for number, (label, values) in enumerate(by_lane.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in enumerate(values))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn.append(_text(right - 4, _TOP + 14 + 15 * number, label, "end", colour=colour))
    return _picture(title, drawn, height)


def _text(x: float, y: float, text: str, anchor: str = "start", *, bold: bool = False, colour: str = "#1f2933") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight} {_FONT}>{escape(text)}</text>'


def _picture(title: str, drawn: Sequence[str], height: float) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">'
    ground = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    name = f"<title>{escape(title)}</title>"
    return "\n".join([head, name, ground, _text(12, 24, title, bold=True), *drawn, "</svg>"]) + "\n"
