"""Seen for real: two sidecars through a provider's bad day, a Prometheus that scrapes them, an Alertmanager that tells
it on. The alert about old doubt wakes somebody, and every panel has data that moves."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.grafana.boards import BOARDS
from deploy.grafana.drawing import ANNOTATIONS, STEP
from tests.deploy.bad_day import TRACE, BadDay, bad_day
from tests.deploy.rules import RULES, rules_in
from tests.deploy.watching import OLD_S, SCRAPE_S, Pager, Prometheus, listening, watching
from tests.e2e.sidecar import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# What the day must wake somebody for besides; whatever else it wakes somebody for is its own affair.
ALSO_TOLD = (
    "PaywitnessCircuitOpen",
    "PaywitnessFallbackSpike",
    "PaywitnessLateOrDuplicateSuccess",
    "PaywitnessPolicyReloadFailed",
    "PaywitnessScheduleExhausted",
)
CIRCUIT = {"provider": "acme_us", "group": "write"}
WITHIN_S = 150.0  # it takes about half a minute on an idle machine
QUERIES = {
    f"{board.name}: {chart.title}: {query.expr}": query.expr
    for board in BOARDS
    for chart in board.charts
    for query in chart.queries
}
# Nobody sets a clock on that day, and money that is not in doubt is none. The panels show zero, not "No data".
_SILENT = (": Clock jumps and gaps: ", "unless on ()", ": Customers who did not act in time: ")
STANDS_STILL = {name for name in QUERIES if any(part in name for part in _SILENT)}
# Whether anybody has to wait for a place depends on the machine.
MAY_STAND_STILL = {name for name in QUERIES if ": Who waits for a place: " in name}
# How much is much does not change by itself.
RECORDED = {rule["record"]: rule["record"] for rule in rules_in(RULES) if not rule["record"].endswith(":much")}


@dataclass
class Seen:
    pager: Pager
    prometheus: Prometheus
    day: BadDay
    since: float

    def still(self, expressions: dict[str, str]) -> list[str]:
        """Those of which no series has ever had two values."""
        now = time.time()
        return [
            name
            for name, expression in expressions.items()
            if not any(moves(series) for series in self.prometheus.course(expression, self.since, now))
        ]


def moves(series: dict) -> bool:
    return len({value for _, value in series["values"] if value != "NaN"}) > 1


@contextmanager
def a_day_watched(home: Path) -> Iterator[Seen]:
    """Not yet begun."""
    pager, since = Pager(), time.time()
    with listening(pager), bad_day(home, f"{pager.url}/events") as day:
        targets = [f"127.0.0.1:{sidecar.admin_port}" for sidecar in day.sidecars]
        with watching(home / "watching", targets, pager) as prometheus:
            yield Seen(pager, prometheus, day, since)


@contextmanager
def a_bad_day_seen(home: Path) -> Iterator[Seen]:
    with a_day_watched(home) as seen:
        seen.day.begin()
        wait_until(lambda: seen.prometheus.query("paywitness_build_info"), "the first scrape")
        with seen.day.going_on():
            yield seen


def test_on_a_bad_day_somebody_is_woken_and_every_panel_moves(tmp_path: Path) -> None:
    """One test, for one such day costs half a minute."""
    with a_bad_day_seen(tmp_path) as seen:
        assert_an_old_doubt_wakes_somebody(seen)
        assert_every_panel_and_every_recording_rule_has_data_that_moves(seen)
        for name in ALSO_TOLD:
            wait_until(lambda name=name: seen.pager.woken_by(name), name, WITHIN_S)
        assert_a_scrape_needs_no_journal(seen)
        assert_what_changed_is_marked_on_every_dashboard(seen)
        assert_both_sidecars_name_one_journal(seen)
        assert seen.prometheus.traces("payment_call_duration_seconds_bucket", seen.since, time.time()) == {TRACE}


def assert_an_old_doubt_wakes_somebody(seen: Seen) -> None:
    wait_until(lambda: seen.pager.woken_by("PaywitnessUnknownAge"), "the alert", WITHIN_S)
    alert = seen.pager.woken_by("PaywitnessUnknownAge")[0]
    assert alert["labels"]["provider"] == "acme"
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["runbook_url"] == "docs/runbooks/unknown-age.md"
    assert alert["annotations"]["summary"].startswith("acme: an operation has been in doubt for ")
    oldest = 'max_over_time(provider:payment_operation_unknown_age_seconds:max{provider="acme"}[5m])'
    (age,) = seen.prometheus.query(oldest)
    assert float(age["value"][1]) > OLD_S


def assert_every_panel_and_every_recording_rule_has_data_that_moves(seen: Seen) -> None:
    missing = {
        name: query for name, query in {**QUERIES, **RECORDED}.items() if name not in STANDS_STILL | MAY_STAND_STILL
    }
    assert (len(STANDS_STILL), len(MAY_STAND_STILL)) == (3, 1)
    for name in STANDS_STILL:
        shown = seen.prometheus.course(QUERIES[name], seen.since, time.time())
        assert {value for series in shown for _, value in series["values"]} == {"0"}, name

    def nothing_is_missing() -> bool:
        seen.day.check()
        for name in set(missing) - set(seen.still(missing)):
            del missing[name]
        return not missing

    try:
        wait_until(nothing_is_missing, "data that moves", WITHIN_S)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *missing])) from error


def assert_a_scrape_needs_no_journal(seen: Seen) -> None:
    """Its gauges are shown from what was last counted, so its cost cannot grow with what is journalled."""
    wait_until(lambda: seen.day.scraped_while_frozen, "a scrape while the journal stood still", WITHIN_S)
    scraped = seen.day.scraped_while_frozen
    assert scraped is not None
    assert scraped.status_code == 200
    in_doubt = rb'payment_operations_in_doubt\{journal="[0-9a-f]{8}",kind="sale",operation="sale",provider="acme"\}'
    assert re.search(in_doubt, scraped.body)


def assert_both_sidecars_name_one_journal(seen: Seen) -> None:
    reported = seen.prometheus.query("count by (journal, instance) (payment_operations_in_doubt)")
    assert len({each["metric"]["instance"] for each in reported}) == 2
    assert len({each["metric"]["journal"] for each in reported}) == 1


def assert_what_changed_is_marked_on_every_dashboard(seen: Seen) -> None:
    """Each change once: the circuit of the route that is not reached, and the edit of the policies."""
    marked = {
        name: seen.prometheus.course(expr.replace(STEP, f"{SCRAPE_S}s"), seen.since, time.time())
        for name, (expr, _, _) in ANNOTATIONS.items()
    }
    opened = [each for each in marked["Circuits"] if each["metric"] == {**CIRCUIT, "state": "open"}]
    assert opened
    assert len({each["metric"]["revision"] for each in marked["Policies"]}) == 2
