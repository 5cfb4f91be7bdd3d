"""Redis killed and started again under load, with two sidecars over it. The sandbox's ledger judges every answer.

Every call has a mark of its own in its body, which is no part of what makes two calls equal: so each arrival at the
provider, and each effect, names the call whose bytes it was. What was recorded and then lost from sight is sent again
by whoever takes it up, in those same bytes, but not before the lease of the first holder is over.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
import pytest

from tests.e2e.callers import NOBODY_ANSWERED, PAUSE_S, callers_session
from tests.e2e.conftest import FLEET_LEASE_S, Provider
from tests.e2e.contracts import SOON
from tests.e2e.judge import all_at_rest, is_at_rest, is_free, posts
from tests.e2e.sidecar import Answer, Sidecar, ask, wait_until
from tests.journal.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PAYMENTS = 2000
AT_ONCE = 50
BEFORE = 600  # payments that are made when Redis dies
DURING = 200  # calls that are told so while it is away
BLIPS = 4  # then it dies again, and is back at once
BETWEEN = 200  # payments between two of them
PAID_WITHIN_S = 90.0
ANSWERED_WITHIN_S = 2.0  # a second is promised; a machine that runs other tests beside this one is slow
MARKED = (
    ("metadata.order_id", "metadata.purchase"),
    ("ignore: [client_time] ", "ignore: [client_time, metadata.order_id] "),
)


@dataclass(frozen=True)
class Called:
    """One call, and what it was told. Times are wall time, as the sandbox's."""

    purchase: str
    mark: str
    sidecar: Sidecar
    began_at: float
    ended_at: float
    answer: Answer | None  # None: nobody answered

    @property
    def paid(self) -> bool:
        return self.answer is not None and self.answer.status_code == 200


@dataclass
class Shop:
    """Services that pay, so many at once; each repeats under the same key, at the next sidecar, until it is told."""

    fleet: list[Sidecar]
    session: aiohttp.ClientSession
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    calls: list[Called] = field(default_factory=list)
    paid: int = 0

    async def pay(self, number: int, until_mono: float) -> None:
        async with self.at_once:
            for tried in range(1000):
                called = await self._call(number, tried)
                self.calls.append(called)
                if called.paid or time.monotonic() > until_mono:
                    self.paid += called.paid
                    return
                await asyncio.sleep(PAUSE_S)

    async def _call(self, number: int, tried: int) -> Called:
        purchase, mark = f"purchase-{number}", f"purchase-{number}/{tried}"
        sidecar = self.fleet[(number + tried) % len(self.fleet)]
        headers = {"Authorization": "Bearer test", "Idempotency-Key": f"key-{number}", "Paywitness-Timeout-Ms": "3000"}
        if number % 20 == 0:
            headers["Sandbox-Fault"] = "drop_after_commit"
        named = {"purchase": purchase, "order_id": mark}
        body = {"amount": 1000 + number, "currency": "EUR", "source": "tok_ok", "metadata": named}
        began_at, answer = time.time(), None
        try:
            async with self.session.post(f"{sidecar.url}/v1/charges", json=body, headers=headers) as response:
                answer = Answer(response.status, dict(response.headers), await response.read())
        except NOBODY_ANSWERED:
            pass  # which says nothing about the money
        return Called(purchase, mark, sidecar, began_at, time.time(), answer)


def lies(calls: Iterable[Called], provider: Provider) -> list[str]:
    """Answers that the provider's books contradict."""
    arrived: dict[str, list[float]] = {}
    for arrival in posts(provider):
        arrived.setdefault(arrival["order"], []).append(arrival["at"])
    effects = {entry["charge"]: entry for entry in provider.ledger("&kind=charge")}
    found = []
    for call in calls:
        answer = call.answer
        if answer is None:
            continue
        told = f"{call.mark} was told {answer.status_code} {answer.problem or answer.outcome}"
        if call.paid and purchase_of(effects[answer.json["id"]]) != call.purchase:
            found.append(f"{told}, and shown another's charge")
        if not answer.sent:
            never = answer.status_code == 503 or answer.outcome == "not_sent"
            until_at = float("inf") if never else call.began_at + FLEET_LEASE_S
            at = [at - call.began_at for at in arrived.get(call.mark, ()) if at < until_at]
            if at:
                found.append(f"{told}, nothing sent; and its bytes came after {at} s: {answer.body!r}")
    return found


def purchase_of(entry: dict) -> str:
    return str(entry["order"].partition("/")[0])


async def outage(redis: RedisServer, shop: Shop) -> list[Called]:
    """Kill Redis in the midst of it, and start it again; the calls that lived wholly meanwhile."""
    await asyncio.to_thread(wait_until, lambda: shop.paid >= BEFORE, "the load", 60)
    redis.kill()
    killed_at, calls = time.time(), len(shop.calls)
    for sidecar in shop.fleet:
        read = await asyncio.to_thread(ask, f"{sidecar.url}/v1/charges?limit=1", None, {"Authorization": "Bearer test"})
        assert (read.status_code, read.outcome) == (200, "none")  # reads pass
    await asyncio.to_thread(wait_until, lambda: len(shop.calls) >= calls + DURING, "the calls without Redis", 30)
    back_at = time.time()
    await asyncio.to_thread(redis.start)
    return [call for call in shop.calls if call.began_at > killed_at and call.ended_at < back_at]


async def blips(redis: RedisServer, shop: Shop) -> None:
    """Too short for most callers to notice: claims and records whose replies are lost are asked again."""
    for _ in range(BLIPS):
        wanted = shop.paid + BETWEEN
        await asyncio.to_thread(wait_until, lambda wanted=wanted: shop.paid >= wanted, "the load", 60)
        redis.kill()
        await asyncio.to_thread(redis.start)
    assert shop.paid < PAYMENTS  # else the last one hit nobody


def is_refusal_for_want_of_the_journal(call: Called) -> bool:
    answer = call.answer
    return answer is not None and (answer.status_code, answer.problem, answer.sent) == (
        504,
        "journal-unavailable",
        False,
    )


async def test_redis_killed_amid_two_thousand_payments_leaves_each_paid_once_and_every_answer_true(
    sandbox: Provider, make_fleet: Callable[..., list[Sidecar]], redis: RedisServer
) -> None:
    fleet = make_fleet(sandbox.url, *SOON, *MARKED)
    for sidecar in fleet:
        sidecar.start()
    # So that many are at the provider when Redis dies.
    sandbox.weather(seed=7, latency={"kind": "uniform", "low_s": 0.05, "high_s": 0.3}, apply_to="writes")
    async with callers_session() as session:
        shop = Shop(fleet, session)
        until_mono = time.monotonic() + PAID_WITHIN_S
        paying = asyncio.gather(*(shop.pay(number, until_mono) for number in range(PAYMENTS)))
        meanwhile = await outage(redis, shop)
        await blips(redis, shop)
        await paying
    others = [call for call in meanwhile if not is_refusal_for_want_of_the_journal(call)]
    assert not others
    assert {call.sidecar.port for call in meanwhile} == {sidecar.port for sidecar in fleet}
    took_s = sorted(call.ended_at - call.began_at for call in meanwhile)
    assert took_s[len(took_s) * 95 // 100] < ANSWERED_WITHIN_S

    one = fleet[0]
    await asyncio.to_thread(wait_until, lambda: all_at_rest(one), "the end of all doubt", 30)
    entries = sandbox.ledger("&kind=charge")
    assert shop.paid == PAYMENTS
    assert Counter(map(purchase_of, entries)) == Counter(f"purchase-{number}" for number in range(PAYMENTS))
    assert max(Counter(entry["key"] for entry in entries).values()) == 1
    assert not lies(shop.calls, sandbox)
    operations = one.operations()
    assert [operation for operation in operations if not is_at_rest(operation) or operation["incident"]] == []
    assert {operation["state"] for operation in operations if not is_free(operation)} == {"succeeded"}
