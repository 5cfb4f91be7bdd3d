"""The applications of the demo: what they send, what they make of what they hear, and that all meet the same faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import aiohttp
import pytest

from paywitness.demo import clients
from paywitness.demo.clients import (
    FAULTS,
    NO_FAULT,
    Contestant,
    DemoPayment,
    PaymentJob,
    SdkResponse,
    outage,
    pay_all,
    payments,
    start_gap_s,
)
from paywitness.demo.score import CallerResult, ReportedOutcome, score_payments
from paywitness_sandbox.messages import SandboxArrival
from paywitness_sandbox.server import Sandbox


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDK_BACKOFF_S", "SDK_BACKOFF_S_MAX", "JOB_PAUSE_S"):
        monkeypatch.setattr(clients, name, 0.01)
    monkeypatch.setattr(clients, "start_gap_s", lambda count: 0.01)


@pytest.fixture
async def provider() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox


def payment(*script: str, source: str = "tok_ok") -> DemoPayment:
    return DemoPayment("order-1", 1250, source, script)


def straight_to(provider: Sandbox, *, key_per_order: bool = False) -> Contestant:
    return Contestant("test", "Test", "", provider.url, timeout_s=0.3, key_per_order=key_per_order)


async def paid(lane: Contestant, *orders: DemoPayment) -> list[CallerResult]:
    log: list[CallerResult] = []
    await pay_all(lane, list(orders), 1, log)
    return log


# -- what an application makes of an answer


@pytest.mark.parametrize(
    ("heard", "commonly", "by_outcome"),
    [
        (SdkResponse(200, paid=True, outcome="succeeded"), ReportedOutcome.PAID, ReportedOutcome.PAID),
        (SdkResponse(402, outcome="declined"), ReportedOutcome.DECLINED, ReportedOutcome.DECLINED),
        (SdkResponse(503, outcome="not_sent"), ReportedOutcome.FAILED, ReportedOutcome.FAILED),
        (SdkResponse(504, outcome="unknown"), ReportedOutcome.FAILED, ReportedOutcome.UNKNOWN),
        (SdkResponse(500, outcome="unknown"), ReportedOutcome.FAILED, ReportedOutcome.UNKNOWN),
        (SdkResponse(409, outcome="in_flight"), ReportedOutcome.FAILED, ReportedOutcome.UNKNOWN),
        (SdkResponse(), ReportedOutcome.FAILED, ReportedOutcome.UNKNOWN),
    ],
)
def test_only_the_outcome_tells_a_doubt_from_a_failure(
    heard: SdkResponse, commonly: ReportedOutcome, by_outcome: ReportedOutcome
) -> None:
    assert heard.reported_outcome(uses_outcome_header=False) is commonly
    assert heard.reported_outcome(uses_outcome_header=True) is by_outcome


# -- what an SDK and a job do


async def test_an_sdk_finds_a_lost_answer_by_its_own_retry(provider: Sandbox) -> None:
    (line,) = await paid(straight_to(provider), payment("drop_after_commit", "reset_after_commit"))
    assert (line.told, line.requests, line.keys) == (ReportedOutcome.PAID, 3, 1)
    assert provider.ledger.effects(order="order-1") == 1


async def test_a_job_that_runs_again_pays_again(provider: Sandbox) -> None:
    (line,) = await paid(straight_to(provider), payment(*["drop_after_commit"] * 3))
    assert (line.told, line.requests, line.keys) == (ReportedOutcome.PAID, 4, 2)
    assert provider.ledger.effects(order="order-1") == 2


async def test_a_key_per_order_keeps_a_job_from_paying_again(provider: Sandbox) -> None:
    (line,) = await paid(straight_to(provider, key_per_order=True), payment(*["drop_after_commit"] * 3))
    assert (line.told, line.requests, line.keys) == (ReportedOutcome.PAID, 4, 1)
    assert provider.ledger.effects(order="order-1") == 1


async def test_a_job_gives_up_in_the_end_whatever_was_charged(provider: Sandbox) -> None:
    lane = straight_to(provider, key_per_order=True)
    (line,) = await paid(lane, payment("error_500_after_commit"))
    assert (line.told, line.requests) == (ReportedOutcome.FAILED, 6)
    assert provider.ledger.effects(order="order-1") == 1


async def test_a_refused_connection_reaches_nobody_and_spends_no_fault(provider: Sandbox) -> None:
    lane = straight_to(provider)
    await provider.stop()
    async with aiohttp.ClientSession() as session:
        purchase = PaymentJob(lane, payment("error_503"), session, Random(1))
        line = await purchase.run()
    assert (line.told, line.requests, purchase.arrived) == (ReportedOutcome.FAILED, 6, 0)


async def test_a_decline_is_not_retried(provider: Sandbox) -> None:
    (line,) = await paid(straight_to(provider), payment(source="tok_stolen_card"))
    assert (line.told, line.requests) == (ReportedOutcome.DECLINED, 1)


# -- the same weather for everybody


def test_one_seed_makes_one_weather() -> None:
    assert payments(50, seed=7) == payments(50, seed=7)
    assert payments(50, seed=7) != payments(50, seed=8)
    assert payments(10, seed=7) == payments(50, seed=7)[:10]


def test_the_weather_has_every_fault_in_it() -> None:
    drawn = {fault for one in payments(200, seed=1) for fault in one.script}
    assert drawn == {NO_FAULT, *FAULTS}


@pytest.mark.parametrize("count", [10, 30, 100, 300])
def test_all_payments_start_within_twenty_seconds(count: int) -> None:
    assert start_gap_s(count) * count <= 20
    Sandbox().set_schedule(outage(count))  # raises where a provider would not take it


@pytest.mark.parametrize("key_per_order", [False, True])
async def test_the_nth_request_meets_the_nth_fault_under_whichever_key(provider: Sandbox, key_per_order: bool) -> None:
    orders = [replace(one, source="tok_ok") for one in payments(40, seed=3)]
    lane = straight_to(provider, key_per_order=key_per_order)
    log = await paid(lane, *orders)
    for one in orders:
        met = [_fault(arrival) for arrival in provider.arrivals.find(order=one.order)]
        script = iter([fault.partition("(")[0] for fault in one.script])
        assert all(fault in script for fault in met), (met, one.script)  # in this order; a request may never arrive
    assert score_payments(log, provider.ledger.entries).payments == 40


def _fault(arrival: SandboxArrival) -> str:
    return arrival.fault or NO_FAULT
