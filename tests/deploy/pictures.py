"""`make pictures`: what the panels show of a provider's bad day, drawn from a real run into docs/pictures."""

from __future__ import annotations

import math
import re
import tempfile
import time
from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.chart import Board, Chart, Query
from deploy.grafana.picture import Points, picture
from tests.deploy.rules import TOP
from tests.deploy.test_alerts import Seen, a_bad_day_seen

RUN_S = 55.0
BEFORE_S = 2.0  # of the first scrape
WANTED = {
    "overview": (
        "In doubt, by operation",
        "Oldest doubt",
        "Money in doubt",
        "What became of operations",
        "Amplification",
    ),
    "providers": ("Circuits", "Error mix", "Refused by rate limit (429)", "One attempt: 95 of 100"),
    "unknown": ("Resolved, by evidence", "In review"),
    "incidents": ("Fallbacks, by route",),
}


def wanted() -> list[Chart]:
    boards: dict[str, Board] = {board.name: board for board in BOARDS}
    return [
        next(chart for chart in boards[name].charts if chart.title == title)
        for name in WANTED
        for title in WANTED[name]
    ]


def legend_of(query: Query, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), query.legend).strip()


def series_of(chart: Chart, seen: Seen, until: float) -> dict[str, Points]:
    """By legend; those that stayed at zero all the time are left out, where others did not."""
    found: dict[str, Points] = {}
    for query in chart.queries:
        for series in seen.prometheus.course(query.expr, seen.since - BEFORE_S, until):
            points = [(at, float(value)) for at, value in series["values"] if math.isfinite(float(value))]
            found[legend_of(query, series["metric"])] = points
    moved = {name: points for name, points in found.items() if any(value for _, value in points)}
    return moved or found


if __name__ == "__main__":
    folder = TOP / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, a_bad_day_seen(Path(home)) as seen:
        time.sleep(RUN_S)
        until = time.time()
        drawn = picture([(chart, series_of(chart, seen, until)) for chart in wanted()])
    (folder / "bad-day.svg").write_text(drawn, encoding="utf-8")
