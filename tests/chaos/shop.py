"""The shop: services that pay at an even pace, whatever happens, and ask until they know. What they hear is kept."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import aiohttp

from tests.chaos.world import Victim, World
from tests.e2e.callers import NOBODY_ANSWERED
from tests.e2e.sidecar import Answer

OPEN_MAX = 150  # payments whose end is not known; while there are as many, no new one begins
# How many go wrong on the wire. More, and admission spares the provider by refusing calls, as it should: this is not
# about that.
FAULTY = 0.3
PATIENCE_MS = (1000, 2000, 3000)
PAUSE_S, PAUSE_MOST_S = 0.2, 3.0  # between two tries of one service
SPENT = {"succeeded", "declined"}  # after any other end the same key may try again
# What the wire does to one arrival. Where the money moves after all, it has moved long before absent is believed.
FAULTS = (
    *("bad_chunk", "close_before_commit", "declined", "drip(drip_s=0.3)", "drop_after_commit", "empty_200"),
    *("error_500_after_commit", "error_500_before_commit", "error_503", "extra_response", "foreign_response"),
    *("garbage", "hang_after_commit(hang_s=4)", "hang_before_commit(hang_s=4)", "html_502", "html_504_after_commit"),
    *("late_commit(late_s=1, hang_s=4)", "late_commit(late_s=4, hang_s=1)", "late_response(late_s=1)"),
    *("late_response(late_s=3)", "black_hole(heal_s=3, hang_s=1)", "black_hole(heal_s=3, hang_s=6)"),
    *("black_hole(heal_s=3, hang_s=0)", "rate_limited(retry_after_s=0)"),
    *("reset_after_commit", "reset_before_commit", "reset_before_read", "slow(slow_s=0.5)", "slow(slow_s=1.5)"),
    *("truncated_body", "truncated_head", "unauthorized", "wrong_amount", "wrong_length"),
)
# And to one inquiry in five.
READ_FAULTS = (
    *("bad_chunk", "empty_200", "error_500_before_commit", "error_503", "extra_response", "foreign_response"),
    *("garbage", "hang_before_commit(hang_s=4)", "html_502", "rate_limited(retry_after_s=0)", "reset_before_read"),
    *("slow(slow_s=1)", "truncated_body", "truncated_head", "unauthorized", "wrong_length"),
)
READS_FAULTY = 0.2
SOURCES = (*("tok_ok",) * 12, "tok_stolen_card", "tok_insufficient_funds")
WEBHOOKS = ("", "", "normal", "early", "late(delay_s=1)", "twice", "ten_times", "never")
REFUSED_WEBHOOKS = ("forged", "old_timestamp")


@dataclass(eq=False)
class Payment:
    number: int
    amount: int = 1000
    source: str = "tok_ok"
    script: str = ""
    webhook: str = "never"
    at_once: int = 1  # so many callers pay it, each under the same key
    fresh: bool = False  # under a fresh key with every try, as many SDKs do
    told: list[Answer] = field(default_factory=list)
    tries: int = 0

    @property
    def order(self) -> str:
        return f"order-{self.number}"

    @property
    def ended(self) -> bool:
        return any(answer.outcome in SPENT for answer in self.told)

    @property
    def is_contradicted(self) -> bool:
        """Whether the provider says something else of it than it does."""
        return "wrong_amount" in self.script or "foreign_response" in self.script

    @property
    def body(self) -> dict:
        metadata = {"order_id": self.order}
        return {"amount": self.amount, "currency": "EUR", "source": self.source, "metadata": metadata}

    @property
    def headers(self) -> dict[str, str]:
        key = f"key-{self.number}" + (f"-{self.tries}" if self.fresh else "")
        given = {"Authorization": "Bearer test", "Idempotency-Key": key, "Sandbox-Webhook": self.webhook or "normal"}
        is_spoken_of = self.script and not (self.fresh and self.tries)  # the sandbox counts the arrivals of a key
        return given | ({"Sandbox-Fault": self.script} if is_spoken_of else {})


@dataclass
class Shop:
    world: World
    session: aiohttp.ClientSession
    dice: Random
    calls_a_second: float
    faults: tuple[str, ...] = FAULTS
    payments: list[Payment] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    open: int = 0
    closed: bool = False  # nobody comes any more
    gives_up_mono: float = float("inf")
    _ahead: list[str] = field(default_factory=list)
    _paying: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until it is closed, and whoever came knows or has given up."""
        loop = asyncio.get_running_loop()
        due_mono = loop.time()
        async with asyncio.TaskGroup() as paying:
            self._paying = paying
            while not self.closed:
                due_mono = max(due_mono + 1 / self.calls_a_second, loop.time() - 1.0)
                await asyncio.sleep(max(0.0, due_mono - loop.time()))
                if self.open < OPEN_MAX:
                    paying.create_task(self._paid(self._drawn()))

    def _drawn(self) -> Payment:
        dice = self.dice
        # Where nothing is sent again in doubt, each fault may cost the time that "not found" must settle.
        faults = dice.choice((1, 1, 2, 3)) if self.world.contract in {"replayed", "reexecuted"} else 1
        script = ",".join(self._next_fault() for _ in range(faults)) if dice.random() < FAULTY else ""
        # One that is refused holds up those behind it.
        webhook = dice.choice(WEBHOOKS if dice.random() < 0.99 else REFUSED_WEBHOOKS)
        payment = self._next(
            amount=dice.randrange(100, 100_000),
            source=dice.choice(SOURCES),
            script=script,
            webhook=webhook,
            at_once=dice.choice((1, 1, 1, 1, 1, 1, 1, 2, 5)),
            fresh=dice.random() < 0.25,
        )
        if self.world.contract == "replayed" and "error_500_before_commit" in payment.script:
            payment.fresh = True  # the provider says it again under this key for ever
        if payment.is_contradicted:
            payment.webhook = "never"  # told the truth beside it, the provider contradicts itself: rightly an incident
        payment.at_once = 1 if payment.fresh else payment.at_once
        return payment

    def _next_fault(self) -> str:
        """All of them, one after the other, in an order of chance."""
        if not self._ahead:
            self._ahead = self.dice.sample(self.faults, len(self.faults))
        return self._ahead.pop()

    def _next(self, **what: object) -> Payment:
        payment = Payment(len(self.payments), **what)  # type: ignore[arg-type]  # the fields of a payment
        self.payments.append(payment)
        return payment

    async def _paid(self, payment: Payment) -> None:
        self.open += 1
        try:
            async with asyncio.TaskGroup() as callers:
                for place in range(payment.at_once):
                    callers.create_task(self._insist(payment, place))
        finally:
            self.open -= 1

    async def _insist(self, payment: Payment, place: int) -> None:
        """Ask until it is known, at one sidecar after the other. What is known is asked for once more, now and then."""
        pause_s, again = PAUSE_S, payment.number % 7 == 0
        while time.monotonic() < self.gives_up_mono:
            sidecars = self.world.sidecars
            answer = await self.call(payment, sidecars[(payment.number + place + payment.tries) % len(sidecars)])
            if answer is not None and answer.outcome in SPENT:
                if not again:
                    return
                again = False
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MOST_S, pause_s * 1.5)

    async def call(self, payment: Payment, sidecar: Victim, patience_ms: int | None = None) -> Answer | None:
        """One call. None: nobody answered, which says nothing about the money."""
        patience_ms = patience_ms or self.dice.choice(PATIENCE_MS)
        headers = payment.headers | {"Paywitness-Timeout-Ms": str(patience_ms)}
        payment.tries += 1
        try:
            async with self.session.post(f"{sidecar.url}/v1/charges", json=payment.body, headers=headers) as response:
                answer = Answer(response.status, dict(response.headers), await response.read())
        except NOBODY_ANSWERED:
            self.told["nobody answered"] += 1
            return None
        self.told[f"{answer.status_code} {answer.outcome or answer.problem}"] += 1
        payment.told.append(answer)
        return answer

    async def served_by(self, sidecar: Victim, within_s: float) -> tuple[bool, Counter[str]]:
        """Whether a payment of its own goes through: tried again at once, until it does; and what it heard before. One
        that is in doubt is asked for like any other, and the next one tried: where nothing may be sent again it has to
        settle, however well the sidecar is."""
        payment, until_mono, heard = self._next(), time.monotonic() + within_s, Counter[str]()
        while time.monotonic() < until_mono:
            answer = await self.call(payment, sidecar, 2000)
            if answer is not None and answer.status_code == 200:
                return True, heard
            heard[_said(answer)] += 1
            if answer is not None and answer.problem == "unknown":
                self._asked_for(payment)
                payment = self._next()
            await asyncio.sleep(0.02)
        self._asked_for(payment)
        return False, heard

    def _asked_for(self, payment: Payment) -> None:
        assert self._paying is not None
        self._paying.create_task(self._paid(payment))


def _said(answer: Answer | None) -> str:
    if answer is None:
        return "nobody answered"
    limited = answer.headers.get("Paywitness-Limited-By", "").partition(";")[0]
    return " ".join(filter(None, (str(answer.status_code), answer.outcome, answer.problem, limited)))


def session_of_the_shop() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), connector=aiohttp.TCPConnector(limit=0))
