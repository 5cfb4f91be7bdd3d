"""Doubt, with real processes: lost answers under every contract, kill -9 meanwhile, a black hole that heals, and two
operators at once. The ledger of the sandbox judges: one effect, no false failure, nothing stuck, nobody had to help."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp
import pytest

from proxy.engine.steps import SENDING_RECORDED
from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Answer, Sidecar, wait_until
from tests.engine.storm import WITHOUT_KEYS

StartSandbox = Callable[..., Provider]
MakeSidecar = Callable[..., Sidecar]
Edits = tuple[tuple[str, str], ...]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WEBHOOK_SECRET = "whsec_of_the_shop"
CALLERS = 40
PATIENCE_MS = 1000
SETTLE_S = 32.0  # the least that a policy may ask for here: a lease, and the first byte's timeout

SOON: Edits = (
    (
        "schedule: [2s, 10s, 30s, 2m, 10m, 1h, 6h, 24h]",
        "schedule: [300ms, 600ms, 1s, 1500ms, 2s, 2500ms, 3s, 4s, 5s, 6s, 7s, 8s, 9s, 10s, 20s, 30s]",
    ),
    ("  first_byte: 5s ", "  first_byte: 2s "),
    ("settle: 10m ", f"settle: {SETTLE_S:.0f}s "),
    ("lag: 5s ", "lag: 1s "),
)
NOBODY_TO_ASK: Edits = (("    ask: *ask_for_a_charge ", "    # nobody to ask "),)
NO_WEBHOOK: Edits = (("    kind: sale\n", "    kind: sale\n    webhook: none\n"),)
STORES: Mapping[str, Edits] = {
    "replayed": (),
    "reexecuted": (("errors_under_key: replayed ", "errors_under_key: reexecuted "),),
    "not_stored": (("errors_under_key: replayed ", "errors_under_key: not_stored "),),
    "none": WITHOUT_KEYS,
}
NO_EFFECT = {"failed", "declined", "not_sent"}
LOST = (aiohttp.ClientError, TimeoutError, OSError)


# --- the callers


@dataclass(eq=False)
class Payment:
    number: int
    fault: str = ""
    keys: set[str] = field(default_factory=set)
    told: list[Answer] = field(default_factory=list)

    @property
    def order(self) -> str:
        return f"order-{self.number}"

    @property
    def last(self) -> Answer:
        return self.told[-1]


@dataclass
class Callers:
    """Services that call the sidecar, so many at once, and keep what they are told."""

    sidecar: Sidecar
    session: aiohttp.ClientSession
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLERS))

    async def call(self, payment: Payment, key: str) -> Answer | None:
        """One call. None: nobody answered, which says nothing about the money."""
        payment.keys.add(key)
        headers = {"Authorization": "Bearer test", "Idempotency-Key": key, "Paywitness-Timeout-Ms": str(PATIENCE_MS)}
        if payment.fault:
            headers["Sandbox-Fault"] = payment.fault
        amount = 1000 + payment.number
        body = {"amount": amount, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": payment.order}}
        try:
            async with self.session.post(f"{self.sidecar.url}/v1/charges", json=body, headers=headers) as response:
                answer = Answer(response.status, dict(response.headers), await response.read())
        except LOST:
            return None
        payment.told.append(answer)
        return answer

    async def pay(self, payment: Payment) -> None:
        """Call until something was sent: only "nothing was sent and nothing will be" is tried again."""
        async with self.at_once:
            for _ in range(20):
                answer = await self.call(payment, f"key-{payment.number}")
                if answer is not None and answer.status_code != 503:
                    return

    async def insist(self, payment: Payment, until_mono: float) -> None:
        """Call until it is paid. Every other service makes a fresh key for every try, as many SDKs do."""
        tries = 0
        while time.monotonic() < until_mono:
            async with self.at_once:
                fresh = f"-{tries}" if payment.number % 2 else ""
                answer = await self.call(payment, f"key-{payment.number}{fresh}")
            if answer is not None and answer.status_code == 200:
                return
            tries += 1
            await asyncio.sleep(0.2)  # a service that asks again, not at once


def callers_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), connector=aiohttp.TCPConnector(limit=0))


def payments_of(count: int, fault: str) -> list[Payment]:
    """Two of five lose their answers."""
    return [Payment(number, fault if number % 5 < 2 else "") for number in range(count)]


# --- the judge


def is_at_rest(operation: dict) -> bool:
    """Ended, or in front of a person; nobody holds it, and nothing is due."""
    at_rest = operation["state"] in {"succeeded", "failed", "requires_review"}
    return at_rest and operation["next_check_at"] is None and operation["held_until"] is None


def paid_by_order(provider: Provider) -> Counter[str]:
    return Counter(entry["order"] for entry in provider.ledger("&kind=charge"))


def complaints(payments: Iterable[Payment], operations: list[dict], provider: Provider) -> list[str]:
    paid = paid_by_order(provider)
    by_order: dict[str, list[dict]] = {}
    for operation in operations:
        by_order.setdefault(operation["guard"]["shown"], []).append(operation)
    charged = {entry["charge"] for entry in provider.ledger("&kind=charge")}
    found = [f"{operation['id']} is stuck: {operation}" for operation in operations if not is_at_rest(operation)]
    found += [f"{operation['id']}: {operation['incident']}" for operation in operations if operation["incident"]]
    for payment in payments:
        order, outcomes = payment.order, [answer.outcome for answer in payment.told]
        if paid[order] > 1:
            found.append(f"{order} was paid {paid[order]} times: {outcomes}")
        if "succeeded" in outcomes and paid[order] != 1:
            found.append(f"{order} was told paid, and it is not: {outcomes}")
        if outcomes and outcomes[-1] in NO_EFFECT and paid[order]:
            found.append(f"{order} was told not paid, and it is: {outcomes}")
        ends = Counter(operation["state"] for operation in by_order.get(order, []))
        if ends["succeeded"] + ends["requires_review"] != (1 if paid[order] else 0):
            found.append(f"{order} is paid {paid[order]} times and ends as {dict(ends)}")
        if ends["succeeded"] and not {each["reference"] for each in by_order[order] if each["reference"]} <= charged:
            found.append(f"{order} names a charge that the provider does not know")
    return found


# --- lost answers, under each contract


@dataclass(frozen=True)
class Case:
    stores: str  # what the provider does with a repeated key
    edits: Edits
    lost: int  # so many arrivals of one payment lose their answers
    webhook: bool = False
    evidence: bool = True


CASES = {
    "replayed": Case("replayed", (*NOBODY_TO_ASK, *NO_WEBHOOK), 4),
    "reexecuted": Case("reexecuted", (*NOBODY_TO_ASK, *NO_WEBHOOK), 4),
    "not_stored_ask": Case("not_stored", NO_WEBHOOK, 1),
    "none_ask": Case("none", NO_WEBHOOK, 1),
    "none_webhook": Case("none", NOBODY_TO_ASK, 1, webhook=True),
    "none_at_all": Case("none", (*NOBODY_TO_ASK, *NO_WEBHOOK), 1, evidence=False),
}


@pytest.mark.parametrize("name", CASES)
async def test_two_hundred_of_five_hundred_answers_are_lost_and_all_end_rightly(
    start_sandbox: StartSandbox, make_sidecar: MakeSidecar, name: str
) -> None:
    case = CASES[name]
    provider = start_sandbox(case.stores)
    environment = {"ACME_WEBHOOK_SECRET": WEBHOOK_SECRET}
    sidecar = make_sidecar(provider.url, *SOON, *STORES[case.stores], *case.edits, environment=environment).start()
    if case.webhook:
        url = f"http://127.0.0.1:{sidecar.webhooks_port}/paywitness/webhooks/acme"
        provider.tell_webhooks(url, WEBHOOK_SECRET, mode="late(delay_s=1.5)")
    # While it lasts the provider is also slow to say what it knows, so that many callers leave.
    provider.weather(seed=3, slow_reads_s=0.15, read_faults={"error_500": 0.3})
    payments = payments_of(500, ",".join(["drop_after_commit"] * case.lost))
    async with callers_session() as session:
        callers = Callers(sidecar, session)
        await asyncio.gather(*(callers.pay(payment) for payment in payments))
        provider.weather()
        await asyncio.to_thread(wait_until, lambda: all_at_rest(sidecar), "the end of all doubt", 40)
        operations = sidecar.operations()
        assert not complaints(payments, operations, provider)
        assert set(paid_by_order(provider).values()) == {1}
        assert len(paid_by_order(provider)) == 500
        states = {operation["guard"]["shown"]: operation["state"] for operation in operations if not is_free(operation)}
        unheard = [payment for payment in payments if payment.last.status_code != 200]
        assert {(payment.last.status_code, payment.last.outcome) for payment in unheard} == {(504, "unknown")}
        assert len(unheard) >= 20  # else nothing was left to the background
        if case.evidence:
            assert set(states.values()) == {"succeeded"}
        else:
            assert {states[payment.order] for payment in payments if payment.fault} == {"requires_review"}
            in_review = [each for each in operations if each["state"] == "requires_review"]
            assert {each["because"] for each in in_review} == {"in_doubt_nobody_to_ask"}
        # Whoever comes back is told what was found, and nothing is sent for it.
        arrived = posts(provider)
        await asyncio.gather(*(callers.pay(payment) for payment in unheard))
        for payment in unheard:
            expected = (200, "succeeded") if states[payment.order] == "succeeded" else (504, "unknown")
            assert (payment.last.status_code, payment.last.outcome) == expected, payment
        assert posts(provider) == arrived


def is_free(operation: dict) -> bool:
    """Ended with nothing done: the next call under its key was another operation."""
    return operation["state"] == "failed" and operation["released"]


def all_at_rest(sidecar: Sidecar) -> bool:
    open_states = ("prepared", "sending", "backoff", "unknown", "pending")
    query = "".join(f"&state={state}" for state in open_states)
    return not sidecar.admin(f"/v1/operations?limit=1{query}").json["operations"]


def posts(provider: Provider) -> int:
    return sum(arrival["method"] == "POST" for arrival in provider.arrivals())


# --- kill -9 meanwhile


KILL_EVERY_S = 2.0
KILLED = {
    "replayed": Case("replayed", (), 2),
    "not_stored_ask": Case("not_stored", (), 1),
    "none_ask": Case("none", (), 1),
}


@dataclass
class Killer:
    """kill -9 every two seconds, and a start on the same journal and ports, for as long as the load lasts."""

    sidecar: Sidecar
    over: threading.Event = field(default_factory=threading.Event)
    kills: int = 0

    def work(self) -> None:
        while not self.over.wait(KILL_EVERY_S):
            self.sidecar.kill()
            self.sidecar.start()
            self.kills += 1


@pytest.mark.parametrize("name", KILLED)
async def test_killed_every_two_seconds_it_pays_each_order_once_and_needs_no_operator(
    start_sandbox: StartSandbox, make_sidecar: MakeSidecar, name: str
) -> None:
    case = KILLED[name]
    provider = start_sandbox(case.stores)
    provider.weather(seed=5, latency={"kind": "uniform", "low_s": 0.2, "high_s": 0.9}, apply_to="writes")
    sidecar = make_sidecar(provider.url, *SOON, *STORES[case.stores], *case.edits).start()
    payments = payments_of(200, ",".join(["drop_after_commit"] * case.lost))
    killer = Killer(sidecar)
    killing = asyncio.create_task(asyncio.to_thread(killer.work))
    async with callers_session() as session:
        callers = Callers(sidecar, session, asyncio.Semaphore(8))  # so that the load lasts
        # What was recorded as sent and never left is known to be absent only after all has settled.
        until_mono = time.monotonic() + 2 * SETTLE_S + 30
        insisting = [asyncio.create_task(callers.insist(payment, until_mono)) for payment in payments]
        await asyncio.wait(insisting, timeout=20)
        killer.over.set()
        await killing
        await asyncio.gather(*insisting)
    await asyncio.to_thread(wait_until, lambda: all_at_rest(sidecar), "the end of all doubt", 2 * SETTLE_S)
    operations = sidecar.operations()
    assert not complaints(payments, operations, provider)
    assert {payment.order: payment.told[-1].outcome for payment in payments if payment.last.status_code != 200} == {}
    assert paid_by_order(provider) == Counter(payment.order for payment in payments)
    assert {operation["state"] for operation in operations if not is_free(operation)} == {"succeeded"}
    assert all(entry["source"] != "operator" for each in operations for entry in timeline(sidecar, each["id"]))
    assert killer.kills >= 3
    assert sum(len(payment.keys) > 1 for payment in payments) >= 5  # fresh keys, and still one payment each


def timeline(sidecar: Sidecar, operation_id: str) -> list[dict]:
    return list(sidecar.operation(operation_id)["timeline"])


async def test_what_a_kill_kept_from_leaving_is_absent_after_all_has_settled_and_then_paid_once(
    start_sandbox: StartSandbox, make_sidecar: MakeSidecar
) -> None:
    """Recorded as sending, and not a byte left: without a key only time for it to settle, and then asking, can tell."""
    provider = start_sandbox("none")
    sidecar = make_sidecar(provider.url, *SOON, *WITHOUT_KEYS, *NO_WEBHOOK).start(step=SENDING_RECORDED)
    payment = Payment(1)
    async with callers_session() as session:
        callers = Callers(sidecar, session)
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
    assert payment.told[-2].outcome in {"unknown", "not_sent"}  # it may have waited until it was known
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
        callers = Callers(sidecar, session)
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
