"""Doubt, with real processes: lost answers under every contract, kill -9 meanwhile, a black hole that heals, and two
operators at once. The ledger of the sandbox judges: one effect, no false failure, nothing stuck, nobody had to help.

What must hold for one sidecar over SQLite must hold for two over one Redis, whichever of them is asked or killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

import pytest

from paywitness.engine.failpoints import SENDING_RECORDED
from tests.e2e.callers import Callers, Payment, callers_session, payments_of
from tests.e2e.conftest import Provider
from tests.e2e.contracts import CASES, KILLED, NO_WEBHOOK, NOBODY_TO_ASK, SETTLE_S, SOON, WEBHOOK_SECRET
from tests.e2e.judge import all_at_rest, complaints, is_free, paid_by_order, posts, timeline
from tests.e2e.sidecar import Answer, Sidecar, wait_until
from tests.engine.storm import WITHOUT_KEYS

StartSandbox = Callable[..., Provider]
MakeSidecar = Callable[..., Sidecar]
MakeFleet = Callable[..., list[Sidecar]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Ground:
    """Where the sidecars stand: how many, over what, and how much is asked of them."""

    make: MakeFleet
    payments: int
    killed_payments: int
    kills_max: int  # of each sidecar


@pytest.fixture(params=["sqlite", "redis"])
def ground(request: pytest.FixtureRequest, make_sidecar: MakeSidecar) -> Ground:
    if request.param == "redis":
        return Ground(request.getfixturevalue("make_fleet"), 200, 80, 2)
    return Ground(lambda *given, **named: [make_sidecar(*given, **named)], 500, 200, 5)


# --- lost answers, under each contract


@pytest.mark.parametrize("name", CASES)
async def test_two_of_five_answers_are_lost_and_all_end_rightly(
    start_sandbox: StartSandbox, ground: Ground, name: str
) -> None:
    case = CASES[name]
    provider = start_sandbox(case.stores)
    sidecars = ground.make(provider.url, *case.policy, environment={"ACME_WEBHOOK_SECRET": WEBHOOK_SECRET})
    one = started(sidecars)[0]
    if case.webhook:
        url = f"http://127.0.0.1:{one.webhooks_port}/paywitness/webhooks/acme"
        provider.tell_webhooks(url, WEBHOOK_SECRET, mode="late(delay_s=1.5)")
    # While it lasts the provider is also slow to say what it knows, so that many callers leave.
    provider.weather(seed=3, slow_reads_s=0.15, read_faults={"error_500": 0.3})
    payments = payments_of(ground.payments, case.fault)
    async with callers_session() as session:
        callers = Callers(sidecars, session)
        await asyncio.gather(*(callers.pay(payment) for payment in payments))
        provider.weather()
        await asyncio.to_thread(wait_until, lambda: all_at_rest(one), "the end of all doubt", 40)
        operations = one.operations()
        assert not complaints(payments, operations, provider)
        assert paid_by_order(provider) == Counter(payment.order for payment in payments)
        states = {operation["guard"]["shown"]: operation["state"] for operation in operations if not is_free(operation)}
        unheard = [payment for payment in payments if payment.last.status_code != 200]
        assert {(payment.last.status_code, payment.last.outcome) for payment in unheard} == {(504, "unknown")}
        assert len(unheard) >= ground.payments // 25  # else nothing was left to the background
        if case.evidence:
            assert set(states.values()) == {"succeeded"}
        else:
            assert {states[payment.order] for payment in payments if payment.fault} == {"requires_review"}
            in_review = [each for each in operations if each["state"] == "requires_review"]
            assert {each["because"] for each in in_review} == {"in_doubt_nobody_to_ask"}
        # Whoever comes back is told what was found, and nothing is sent for it.
        arrived = len(posts(provider))
        await asyncio.gather(*(callers.pay(payment) for payment in unheard))
        for payment in unheard:
            expected = (200, "succeeded") if states[payment.order] == "succeeded" else (504, "unknown")
            assert (payment.last.status_code, payment.last.outcome) == expected, payment
        assert len(posts(provider)) == arrived


def started(sidecars: list[Sidecar]) -> list[Sidecar]:
    with ThreadPoolExecutor(len(sidecars)) as starters:
        return list(starters.map(lambda sidecar: sidecar.start(), sidecars))


# --- kill -9 meanwhile


KILL_EVERY_S = 2.0


@dataclass
class Killer:
    """kill -9 every two seconds, and a start on the same journal and ports, while the load lasts."""

    sidecar: Sidecar
    first_after_s: float
    kills_max: int
    over: threading.Event
    kills: int = 0

    def work(self) -> None:
        wait_s = self.first_after_s
        while self.kills < self.kills_max and not self.over.wait(wait_s):
            self.sidecar.kill()
            self.sidecar.start()
            self.kills += 1
            wait_s = KILL_EVERY_S


@pytest.mark.parametrize("name", KILLED)
async def test_killed_every_two_seconds_it_pays_each_order_once_and_needs_no_operator(
    start_sandbox: StartSandbox, ground: Ground, name: str
) -> None:
    case = KILLED[name]
    provider = start_sandbox(case.stores)
    provider.weather(seed=5, latency={"kind": "uniform", "low_s": 0.2, "high_s": 0.9}, apply_to="writes")
    sidecars = started(ground.make(provider.url, *case.policy))
    payments = payments_of(ground.killed_payments, case.fault)
    over = threading.Event()
    killers = [
        Killer(sidecar, KILL_EVERY_S - number, ground.kills_max, over) for number, sidecar in enumerate(sidecars)
    ]
    killing = [asyncio.create_task(asyncio.to_thread(killer.work)) for killer in killers]
    async with callers_session() as session:
        callers = Callers(sidecars, session, asyncio.Semaphore(8))  # so that the load lasts
        # What was recorded as sent and never left is known to be absent only after all has settled.
        until_mono = time.monotonic() + 2 * SETTLE_S + 30
        await asyncio.gather(*(callers.insist(payment, until_mono) for payment in payments))
    over.set()
    await asyncio.gather(*killing)
    one = sidecars[0]
    await asyncio.to_thread(wait_until, lambda: all_at_rest(one), "the end of all doubt", 2 * SETTLE_S)
    operations = one.operations()
    assert not complaints(payments, operations, provider)
    assert {payment.order: payment.told[-1].outcome for payment in payments if payment.last.status_code != 200} == {}
    assert paid_by_order(provider) == Counter(payment.order for payment in payments)
    assert {operation["state"] for operation in operations if not is_free(operation)} == {"succeeded"}
    assert all(entry["source"] != "operator" for each in operations for entry in timeline(one, each["id"]))
    assert sum(killer.kills for killer in killers) >= 3
    assert all(killer.kills for killer in killers)
    assert sum(len(payment.keys) > 1 for payment in payments) >= 5  # fresh keys, and still one payment each


async def test_what_a_kill_kept_from_leaving_is_absent_after_all_has_settled_and_then_paid_once(
    start_sandbox: StartSandbox, make_sidecar: MakeSidecar
) -> None:
    """Recorded as sending, and not a byte left: without a key only time for it to settle, and then asking, can tell."""
    provider = start_sandbox("none")
    sidecar = make_sidecar(provider.url, *SOON, *WITHOUT_KEYS, *NO_WEBHOOK).start(step=SENDING_RECORDED)
    payment = Payment(1)
    async with callers_session() as session:
        callers = Callers([sidecar], session)
        assert await callers.call(payment, "key-1") is None
        await asyncio.to_thread(sidecar.wait_for_end)
        killed_at = time.time()
        await asyncio.to_thread(sidecar.start)
        await callers.insist(payment, time.monotonic() + 2 * SETTLE_S)
    assert payment.last.status_code == 200
    paid, absent = sidecar.operations()
    assert (paid["state"], absent["state"], absent["reading"]) == ("succeeded", "failed", "absent")
    assert seconds(absent["ended_at"]) - killed_at >= SETTLE_S
    assert {answer.outcome for answer in payment.told[:-2]} == {"unknown"}
    assert payment.told[-2].outcome in {"unknown", "absent"}  # it may have waited until it was known
    assert provider.effects(payment.order) == 1


# --- commits that come after "not found"


async def test_not_found_is_no_failure_while_a_black_hole_may_still_heal(
    start_sandbox: StartSandbox, make_sidecar: MakeSidecar
) -> None:
    """Without keys. What heals is found and paid once; only what never arrived fails, and only after all settled."""
    provider = start_sandbox("none")
    sidecar = make_sidecar(provider.url, *SOON, *WITHOUT_KEYS, *NO_WEBHOOK, options=("--harvest", "0")).start()
    holes = [
        Payment(1, "black_hole(heal_s=4, hang_s=0)"),
        Payment(2, "black_hole(heal_s=8, hang_s=60)"),
        Payment(3, "black_hole(heal_s=20, hang_s=0)"),
        Payment(4, "black_hole(heal_s=28, hang_s=60)"),
    ]
    never = Payment(5, "reset_before_commit")
    async with callers_session() as session:
        callers = Callers([sidecar], session)
        await asyncio.gather(*(callers.call(payment, f"key-{payment.number}") for payment in (*holes, never)))
        assert {(payment.last.status_code, payment.last.outcome) for payment in (*holes, never)} == {(504, "unknown")}
        await asyncio.to_thread(wait_until, lambda: all_at_rest(sidecar), "the end of all doubt", SETTLE_S + 40)
        ended = {
            payment: sidecar.operation(payment.last.headers["Paywitness-Operation"]) for payment in (*holes, never)
        }
        for payment in holes:
            (effect,) = provider.ledger(f"&order={payment.order}")
            operation = ended[payment]
            assert (operation["state"], operation["reference"]) == ("succeeded", effect["charge"])
            assert [entry["state"] for entry in operation["timeline"] if entry["state"] == "failed"] == []
            missed_at = [seconds(each["at"]) for each in operation["timeline"] if found_by(each) == "missed"]
            assert min(missed_at) < effect["at"]  # it was "not found" before it was there
            answer = await callers.call(payment, f"key-{payment.number}")
            assert answer is not None
            assert (answer.status_code, answer.json["id"]) == (200, effect["charge"])
        lost = ended[never]
        assert (lost["state"], lost["reading"], lost["released"]) == ("failed", "absent", True)
        assert seconds(lost["ended_at"]) - seconds(lost["first_sent_at"]) >= SETTLE_S
        assert provider.effects(never.order) == 0
        never.fault = ""
        answer = await callers.call(never, "key-5")  # its key is free again
        assert answer is not None
        assert (answer.status_code, provider.effects(never.order)) == (200, 1)
    assert set(paid_by_order(provider).values()) == {1}


def found_by(entry: dict) -> str | None:
    return entry["finding"]["found"] if entry["finding"] is not None else None


def seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


# --- two operators


def test_of_two_operators_at_once_one_decides_and_the_other_is_told_what_it_is_now(
    start_sandbox: StartSandbox, make_sidecar: MakeSidecar
) -> None:
    provider = start_sandbox("none")
    sidecar = make_sidecar(provider.url, *SOON, *WITHOUT_KEYS, *NOBODY_TO_ASK, *NO_WEBHOOK).start()
    orders = [f"order-{number}" for number in range(12)]
    lost = [sidecar.charge(f"key-{order}", order, fault="drop_after_commit") for order in orders]
    assert {(answer.status_code, answer.outcome) for answer in lost} == {(504, "unknown")}
    both = threading.Barrier(2)

    def resolve(operation: dict, actor: str, end: str) -> Answer:
        order = {"actor": actor, "reason": "ticket 4711", "as": end, "evidence": f"{actor} read the provider's books"}
        both.wait(10)
        return sidecar.admin(f"/v1/operations/{operation['id']}/resolve", {**order, "version": operation["version"]})

    with ThreadPoolExecutor(2) as operators:
        for number, answer in enumerate(lost):
            seen = sidecar.operation(answer.headers["Paywitness-Operation"])
            assert seen["state"] == "requires_review"
            ada = operators.submit(resolve, seen, "ada", "succeeded")
            bob = operators.submit(resolve, seen, "bob", "succeeded" if number % 2 else "failed")
            told = {"ada": ada.result(), "bob": bob.result()}
            assert sorted(each.status_code for each in told.values()) == [200, 409], told
            first = min(told, key=lambda actor: told[actor].status_code)
            second = max(told, key=lambda actor: told[actor].status_code)
            now = sidecar.operation(seen["id"])
            assert now["state"] == told[first].json["state"]
            assert told[second].json["state"] == now["state"]
            assert first in told[second].json["detail"]
            decided = [entry for entry in now["timeline"] if entry["source"] == "operator"]
            assert [entry["actor"] for entry in decided] == [first]
    assert set(paid_by_order(provider).values()) == {1}
    assert len(provider.arrivals()) == len(orders)  # nobody sent anything for it
