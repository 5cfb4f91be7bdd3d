"""The gauges about doubt are the fleet's: every sidecar reports the same, one that was killed takes nothing with it,
and one that comes back begins where the others are."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import LOST, Sidecar, ask, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
MakeFleet = Callable[..., list[Sidecar]]

GAUGES = ("payment_operations_in_doubt", "payment_money_in_doubt", "payment_review_open", "payment_retry_queue_depth")
AGE = "payment_operation_unknown_age_seconds"
LOST_FOR_EVER = "black_hole(heal_s=3600, hang_s={})"
SALES = 'payment_operations_in_doubt{kind="sale",operation="sale",provider="acme"}'
EUROS = 'payment_money_in_doubt{currency="EUR",provider="acme"}'
WAITING = 'payment_retry_queue_depth{kind="sale",operation="sale",provider="acme"}'
JOURNAL_LABEL = re.compile(r'journal="[0-9a-f]{8}",')  # of the one journal that both share


def gauges(sidecar: Sidecar) -> dict[str, float]:
    """Those of the fleet that are not zero, by name and labels but the journal's."""
    lines = JOURNAL_LABEL.sub("", ask(f"{sidecar.admin_url}/metrics").body.decode()).splitlines()
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(GAUGES)}
    return {name: value for name, value in found.items() if value}


def in_doubt(count: int) -> dict[str, float]:
    return {SALES: count, EUROS: count * 10.99, WAITING: count}


def lose(sidecar: Sidecar, name: str, hang_s: int = 0, timeout_ms: int = 1000) -> None:
    with suppress(*LOST):
        headers = {"Paywitness-Timeout-Ms": str(timeout_ms)}
        answer = sidecar.charge(name, name, fault=LOST_FOR_EVER.format(hang_s), headers=headers)
        assert answer.outcome == "unknown"


def test_each_reports_all_doubt_and_none_is_lost_with_who_was_killed(sandbox: Provider, make_fleet: MakeFleet) -> None:
    first, second = (sidecar.start() for sidecar in make_fleet(sandbox.url))
    lose(first, "one")
    lose(second, "two")
    for sidecar in (first, second):
        wait_until(lambda sidecar=sidecar: gauges(sidecar) == pytest.approx(in_doubt(2)), "both doubts at each")
    assert first.metric(AGE, provider="acme") == pytest.approx(second.metric(AGE, provider="acme"), abs=2.0)

    caller = threading.Thread(target=lose, args=(first, "three", 60, 30_000))
    caller.start()
    wait_until(lambda: any(arrival["key"] == "three" for arrival in sandbox.arrivals()), "its arrival")
    first.kill()  # with one under way, which becomes doubt when its lease is over
    caller.join()
    wait_until(lambda: gauges(second) == pytest.approx(in_doubt(3)), "the third, at who is left")
    assert second.metric("payment_operation_unknown_total", provider="acme") == 2  # its own, and the dead one's

    first.start()
    wait_until(lambda: gauges(first) == pytest.approx(in_doubt(3)), "the same at who has come back")
    assert gauges(second) == pytest.approx(in_doubt(3))
    assert first.metric(AGE, provider="acme") == pytest.approx(second.metric(AGE, provider="acme"), abs=2.0)
    assert first.metric("payment_operation_unknown_total", provider="acme") == 0  # counters begin anew; rates know it
