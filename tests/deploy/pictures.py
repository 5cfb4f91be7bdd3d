"""`make pictures`: what panels show while a provider loses answers and for a while after, drawn from a real run into
docs/pictures."""

from __future__ import annotations

import itertools
import math
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.chart import Board, Chart, Query
from deploy.grafana.picture import Points, Window, picture
from tests.deploy.bad_day import PAUSE_S, BadDay
from tests.deploy.rules import TOP
from tests.deploy.test_alerts import Seen, a_day_watched
from tests.e2e.sidecar import LOST

WARM_S, CALM_S, FAULT_S, AFTER_S = 10.0, 15.0, 25.0, 35.0
CALLERS = 6
NAME = "the provider loses answers"
WANTED = (
    ("overview", "What became of operations"),
    ("overview", "In doubt, by operation"),
    ("overview", "Amplification"),
)
# Looks for longer than on the bad day of the tests, so that what is in doubt is found and not sent to a person.
PATIENT = ("schedule: [300ms, 1s, 2s, 3s]", "schedule: [1s, 2s, 3s, 4s, 6s, 8s, 12s, 20s]")


def wanted() -> list[Chart]:
    boards: dict[str, Board] = {board.name: board for board in BOARDS}
    return [next(chart for chart in boards[name].charts if chart.title == title) for name, title in WANTED]


def legend_of(query: Query, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), query.legend).strip()


def series_of(chart: Chart, seen: Seen, since: float, until: float) -> dict[str, Points]:
    """By legend; those that stayed at zero all the time are left out, where others did not."""
    found: dict[str, Points] = {}
    for query in chart.queries:
        for series in seen.prometheus.course(query.expr, since, until):
            points = [(at, float(value)) for at, value in series["values"] if math.isfinite(float(value))]
            found[legend_of(query, series["metric"])] = points
    moved = {name: points for name, points in found.items() if any(value for _, value in points)}
    return moved or found


class Load:
    """Payments without a pause. Before `fault_until` many lose their answers, and some take effect only then."""

    def __init__(self, day: BadDay) -> None:
        self._day = day
        self._numbers = itertools.count(1)
        self.fault_until = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(PAUSE_S):
            number = next(self._numbers)
            with suppress(*LOST):
                self._day.pay(
                    f"load-{number}",
                    fault=self._fault(number),
                    source="tok_stolen_card" if number % 11 == 7 else "tok_ok",
                )

    def _fault(self, number: int) -> str:
        left_s = self.fault_until - time.time()
        if left_s <= 0:
            return ""
        late = f"black_hole(heal_s={left_s + 3:.0f}, hang_s=0)"
        return {1: "drop_after_commit", 3: late, 5: "error_500_after_commit", 6: "drop_after_commit"}.get(
            number % 8, ""
        )


def play(seen: Seen) -> tuple[float, Window]:
    """The course of the day: from when on it is drawn, and when the fault was."""
    load = Load(seen.day)
    with ThreadPoolExecutor(CALLERS) as pool:
        running = [pool.submit(load.run) for _ in range(CALLERS)]
        time.sleep(WARM_S)
        began = time.time()
        time.sleep(CALM_S)
        load.fault_until = time.time() + FAULT_S
        window = Window(time.time(), load.fault_until, NAME)
        time.sleep(FAULT_S + AFTER_S)
        load.over.set()
    for each in running:
        each.result()
    return began, window


def run() -> str:
    with tempfile.TemporaryDirectory() as home, a_day_watched(Path(home)) as seen:
        for sidecar in seen.day.sidecars:
            policy = sidecar.home / "policies" / "acme.yaml"
            policy.write_text(policy.read_text("utf-8").replace(*PATIENT), "utf-8")
        seen.day.begin()
        began, window = play(seen)
        until = time.time()
        return picture([(chart, series_of(chart, seen, began, until)) for chart in wanted()], window)


if __name__ == "__main__":
    folder = TOP / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    (folder / "bad-day.svg").write_text(run(), encoding="utf-8")
