"""Services that pay through sidecars, many at once, and keep what they are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.e2e.sidecar import Answer, Sidecar

CALLERS = 40
PATIENCE_MS = 1000
PAY_WITHIN_S = 60.0  # until the first call that may have sent something
PAUSE_S = 0.2  # a service that asks again, not at once
NOBODY_ANSWERED = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(eq=False)
class Payment:
    number: int
    fault: str = ""
    keys: set[str] = field(default_factory=set)
    told: list[Answer] = field(default_factory=list)
    calls: int = 0

    @property
    def order(self) -> str:
        return f"order-{self.number}"

    @property
    def last(self) -> Answer:
        return self.told[-1]


def payments_of(count: int, fault: str) -> list[Payment]:
    """Two of five lose their answers."""
    return [Payment(number, fault if number % 5 < 2 else "") for number in range(count)]


@dataclass
class Callers:
    """So many at once. They are spread over the sidecars, and a repeat goes to the next one."""

    sidecars: Sequence[Sidecar]
    session: aiohttp.ClientSession
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLERS))

    async def call(self, payment: Payment, key: str) -> Answer | None:
        """One call. None: nobody answered, which says nothing about the money."""
        sidecar = self.sidecars[(payment.number + payment.calls) % len(self.sidecars)]
        payment.calls += 1
        payment.keys.add(key)
        headers = {"Authorization": "Bearer test", "Idempotency-Key": key, "Paywitness-Timeout-Ms": str(PATIENCE_MS)}
        if payment.fault:
            headers["Sandbox-Fault"] = payment.fault
        amount = 1000 + payment.number
        body = {"amount": amount, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": payment.order}}
        try:
            async with self.session.post(f"{sidecar.url}/v1/charges", json=body, headers=headers) as response:
                answer = Answer(response.status, dict(response.headers), await response.read())
        except NOBODY_ANSWERED:
            return None
        payment.told.append(answer)
        return answer

    async def pay(self, payment: Payment) -> None:
        """Call until something may have been sent: what was held back, or had no journal, is tried again."""
        until_mono = time.monotonic() + PAY_WITHIN_S
        while time.monotonic() < until_mono:
            async with self.at_once:
                answer = await self.call(payment, f"key-{payment.number}")
            if answer is not None and answer.status_code != 503 and answer.problem != "journal-unavailable":
                return
            await asyncio.sleep(PAUSE_S)

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
            await asyncio.sleep(PAUSE_S)


def callers_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), connector=aiohttp.TCPConnector(limit=0))
