"""What dashboards and alerts stand on: counters that begin at zero, the queue, the loop's pulse, the process."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from paywitness.clock import SystemClock
from paywitness.core.errors import JournalUnavailable
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Outcome, State
from paywitness.core.provider_contract import OperationKind
from paywitness.engine.durability.recovery import Recovery
from paywitness.telemetry.events import CallAnswered, IncidentOpened, PolicyReloaded
from paywitness.telemetry.gauges import QueueRow, queue_rows
from paywitness.telemetry.metrics import LoopLagMonitor
from tests.ages import ages_for
from tests.journal.memory import MemoryJournal
from tests.telemetry.conftest import Told
from tests.telemetry.samples import ACME, ACME_NAMES, operation
from tests.telemetry.test_metrics import counted


def reloaded() -> PolicyReloaded:
    return PolicyReloaded("r1", ok=True, operations=ACME_NAMES)


def test_what_an_alert_waits_for_is_zero_before_it_first_happens(told: Told) -> None:
    """A counter that is born as 1 has not risen, as far as Prometheus can see."""
    told.tell(reloaded())
    assert told.value("payment_duplicate_late_success_total", **ACME) == 0
    assert told.value("payment_schedule_exhausted_total", **ACME) == 0
    assert told.value("payment_operation_unknown_total", **ACME) == 0
    assert told.value("payment_operations_started_total", **ACME) == 0
    for kind in IncidentKind:
        assert told.value("payment_incidents_total", provider="acme", kind=kind) == 0
    assert told.value("payment_incidents_total", provider="", kind=IncidentKind.JOURNAL_ROLLBACK) == 0
    assert told.value("paywitness_journal_errors_total", call="claim") == 0


def test_limits_that_can_be_exceeded_begin_at_zero(told: Told) -> None:
    kinds = {"pay": OperationKind.SALE, "back": OperationKind.REFUND, "take": OperationKind.CAPTURE}
    told.tell(PolicyReloaded("r1", ok=True, operations={"acme": kinds}))
    shown = {
        name: told.value("payment_limit_checks_total", provider="acme", operation=name, kind=kind, result="exceeds")
        for name, kind in kinds.items()
    }
    assert shown == {"pay": None, "back": 0, "take": 0}


def test_a_reload_does_not_set_counters_back(told: Told) -> None:
    told.tell(reloaded())
    told.tell(IncidentOpened(operation(), IncidentKind.SUCCESS_AFTER_FAILURE))
    told.tell(reloaded())
    assert told.value("payment_duplicate_late_success_total", **ACME) == 1


def test_what_is_in_doubt_or_pending_waits_and_what_is_in_review_does_not() -> None:
    doubts = [counted(state=State.UNKNOWN), counted(state=State.REQUIRES_REVIEW)]
    pending = operation(State.PENDING)
    rows = queue_rows(doubts, [pending], doubts[0].oldest_at + 60)
    assert rows[0] == QueueRow(doubts[0].provider, doubts[0].operation, doubts[0].count, 60.0)
    assert [(row.provider, row.operation, row.count) for row in rows[1:]] == [(pending.provider, pending.operation, 1)]


class Enough(Exception):
    """The clock has been asked to sleep as often as the test needs."""


class FewSleeps(SystemClock):
    """Ends whoever sleeps once too often. A second passes between two looks at it, besides what is slept."""

    def __init__(self, sleeps: int) -> None:
        self._sleeps = sleeps
        self._mono = 0.0

    def mono(self) -> float:
        self._mono += 1.0
        return self._mono

    async def sleep(self, seconds: float) -> None:
        if not self._sleeps:
            raise Enough
        self._sleeps -= 1
        self._mono += seconds


async def test_a_loop_that_is_held_up_is_late(told: Told) -> None:
    with pytest.raises(Enough):
        await LoopLagMonitor(FewSleeps(2), told.metrics).run()
    assert told.value("paywitness_loop_lag_seconds_count") == 2
    assert told.value("paywitness_loop_lag_seconds_bucket", le="0.25") == 0
    assert told.value("paywitness_loop_lag_seconds_sum") == 2


async def test_a_journal_that_is_down_is_counted_where_nobody_pays(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal(clock=SystemClock())

    async def away() -> None:
        raise JournalUnavailable("gone")

    monkeypatch.setattr(journal, "doubt_counts", away)
    with pytest.raises(Enough):
        await Recovery(
            journal, FewSleeps(1), told.telemetry, 30.0, ages_for(journal, SystemClock())
        ).keep_updating_gauges()
    assert told.value("paywitness_journal_errors_total", call="look") == 2
    assert told.value("payment_operations_in_doubt", **ACME) is None


def test_the_process_shows_its_memory(told: Told) -> None:
    assert (told.value("process_resident_memory_bytes") or 0) > 1_000_000


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_call_of_a_trace_is_an_exemplar_of_its_bucket_in_open_metrics_alone(told: Told) -> None:
    told.tell(reloaded())
    told.tell(CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.2))
    told.tell(CallAnswered("acme", "authorization", Outcome.SUCCEEDED, 200, None, 0.2, trace_id=TRACE))
    shown = openmetrics.generate_latest(told.metrics.registry).decode()
    (line,) = [line for line in shown.splitlines() if TRACE in line]
    assert line.startswith("payment_call_duration_seconds_bucket{")
    assert 'le="0.25"' in line
    assert line.endswith(f'2.0 # {{trace_id="{TRACE}"}} 0.2')
    assert TRACE not in generate_latest(told.metrics.registry).decode()
