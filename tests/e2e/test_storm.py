"""A storm over the real process: killed again and again, a provider that breaks, callers that ask until they know.

The sandbox runs in a process of its own and is never killed: its ledger judges, beside what the callers were told.
"""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from random import Random

import pytest

from tests.e2e.conftest import Provider
from tests.e2e.sidecar import Answer, Sidecar, ask

pytestmark = pytest.mark.slow

SEED = 1
ORDERS = 60
CALLERS = 12
KILLS = 10
LIVES_S = (0.4, 1.4)  # how long a process lives once it listens
CALM_TRIES = 8
SPENT = {"succeeded", "declined"}  # after any other end the same key may try again
LOST = (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError)

PATIENCE = (
    ("  connect: 2s\n  first_byte: 5s ", "  connect: 1s\n  first_byte: 800ms "),
    ("deadline: 20s", "deadline: 4s"),
    ("base: 100ms, cap: 5s", "base: 20ms, cap: 200ms"),
    ("base: 1s, cap: 20s", "base: 20ms, cap: 200ms"),
    ("base: 200ms, cap: 2s", "base: 20ms, cap: 200ms"),
)
# What is lost or refused here can be found out by asking again under the same key.
PASSING = (
    *("-", "-", "drop_after_commit", "reset_after_commit", "close_before_commit", "reset_before_commit"),
    *("reset_before_read", "truncated_body", "truncated_head", "bad_chunk", "garbage", "empty_200", "html_502"),
    *("html_504_after_commit", "extra_response", "wrong_length", "error_503", "rate_limited(retry_after_s=0)"),
    *("unauthorized", "slow(slow_s=0.3)", "hang_after_commit(hang_s=2)", "hang_before_commit(hang_s=2)"),
    *("late_commit(late_s=1, hang_s=2)", "late_response(late_s=1)", "drip(drip_s=0.3)"),
)
# A whole answer was seen, and the provider would only say it again: what is true stays unknown for now.
STAYING = ("error_500_after_commit", "error_500_before_commit", "wrong_amount", "foreign_response")
PAYS = ("tok_ok",) * 6
DECLINES = ("tok_stolen_card", "tok_insufficient_funds")


@dataclass
class Order:
    name: str
    amount: int
    source: str
    script: str
    told: list[str] = field(default_factory=list)  # outcomes, as the callers heard them
    bodies: set[bytes] = field(default_factory=set)  # of the provider's own answers

    @classmethod
    def of(cls, number: int, dice: Random) -> Order:
        faults = [dice.choice(PASSING) for _ in range(dice.choice((1, 1, 2, 3)))]
        if dice.random() < 0.12:
            faults[dice.randrange(len(faults))] = dice.choice(STAYING)
        return cls(f"order-{number}", dice.randrange(100, 100_000), dice.choice(PAYS + DECLINES), ",".join(faults))

    @property
    def may_stay_unknown(self) -> bool:
        return any(fault in STAYING for fault in self.script.split(","))

    @property
    def ended(self) -> bool:
        return bool(self.told) and self.told[-1] in SPENT

    def ask(self, sidecar: Sidecar) -> Answer | None:
        """One call. None: nobody answered, which says nothing about the money."""
        headers = {"Content-Type": "application/json", "Authorization": "Bearer test"}
        headers |= {"Idempotency-Key": f"key-{self.name}", "Sandbox-Fault": self.script}
        body = {"amount": self.amount, "currency": "EUR", "source": self.source, "metadata": {"order_id": self.name}}
        try:
            answer = ask(f"{sidecar.url}/v1/charges", body, headers, timeout=15)
        except LOST:
            return None
        self.told.append(answer.outcome)
        if self.ended and answer.headers.get("Content-Type") != "application/problem+json":
            self.bodies.add(answer.body)
        return answer


class Weather:
    """Kills the process and starts it again, until it has done so often enough."""

    def __init__(self, sidecar: Sidecar, dice: Random) -> None:
        self._sidecar = sidecar
        self._dice = dice
        self.over = threading.Event()

    def blow(self) -> None:
        try:
            for _ in range(KILLS):
                time.sleep(self._dice.uniform(*LIVES_S))  # nothing but time is waited for: a kill comes when it comes
                self._sidecar.kill()
                self._sidecar.start()
        finally:
            self.over.set()


def insist(order: Order, sidecar: Sidecar, weather: Weather) -> Order:
    """Ask until it is known. When the weather is over, a few times more; twice also what is known already."""
    calm_tries = 0
    while calm_tries < CALM_TRIES:
        calm_tries += weather.over.is_set()
        answer = order.ask(sidecar)
        if answer is not None and order.ended and answer.headers.get("Paywitness-Replayed"):
            return order
        time.sleep(0.05 if not weather.over.is_set() else 0.3)  # until somebody listens again, or the provider is done
    return order


def complaints_about(order: Order, provider: Provider) -> list[str]:
    entries = ask(f"{provider.url}/_sandbox/ledger?order={order.name}").json["entries"]
    paid = [entry["amount"] for entry in entries]
    last = order.told[-1] if order.told else "nothing"
    ends = SPENT & set(order.told)
    found = []
    if len(paid) > 1:
        found.append("paid more than once")
    if "succeeded" in ends and paid != [order.amount]:
        found.append("told paid, and it is not")
    if last in {"declined", "failed", "not_sent", "absent"} and paid:
        found.append("told not paid, and it is")
    if len(ends) > 1 or len(order.bodies) > 1:
        found.append("told one thing and then another")
    if not order.ended and not (last == "unknown" and order.may_stay_unknown):
        found.append("never ended")
    return [f"{what}: {order} {paid}" for what in found]


def test_a_process_killed_every_second_pays_each_order_once_and_leaves_nothing_stuck(
    start_sandbox: Callable[..., Provider], make_sidecar: Callable[..., Sidecar]
) -> None:
    dice = Random(SEED)
    orders = [Order.of(number, dice) for number in range(ORDERS)]
    provider = start_sandbox("replayed")
    sidecar = make_sidecar(provider.url, *PATIENCE).start()
    weather = Weather(sidecar, dice)
    killer = threading.Thread(target=weather.blow)
    killer.start()
    with ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(lambda order: insist(order, sidecar, weather), orders))
    killer.join()
    complaints = [line for order in orders for line in complaints_about(order, provider)]
    assert not complaints, f"seed {SEED}:\n" + "\n".join(complaints)
    stuck = sidecar.admin("/v1/operations?state=sending&state=backoff&state=prepared").json["operations"]
    contradicted = sidecar.admin("/v1/operations?incidents=true").json["operations"]
    assert (stuck, contradicted) == ([], [])
