"""The applications: a job that pays an order with a provider's SDK, and runs again when the SDK gives up.

One client for all lanes, made after what real SDKs do: it retries connection errors, timeouts, 409, 429 and 5xx twice,
with backoff and Retry-After, under one idempotency key that lives for the call. The job, pod or agent that tries again
makes a new call, and a new call mints a new key. What a lane changes about that is in its `Lane`, and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass, field
from random import Random
from time import monotonic

import aiohttp

from proxy.demo.verdict import Answered, Told
from proxy.demo.weather import Payment, start_gap_s

SDK_TRIES = 3  # stripe's default for a module-level client; most others try once
SDK_BACKOFF_S, SDK_BACKOFF_S_MAX = 0.3, 2.0  # stripe's are 0.5 and 5; there is a minute for all
JOB_RUNS = 2
JOB_PAUSE_S = 1.0

RETRIED = frozenset({409, 429, *range(500, 600)})
NOT_KNOWN = frozenset({"unknown", "in_flight", "pending", None})


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    title: str
    how: str
    base_url: str
    patience_s: float
    """How long the client waits for one answer."""
    key_per_order: bool = False
    """The application hands the SDK a key of its own, the same whenever it tries this order."""
    through_paywitness: bool = False
    """Adds Paywitness-Key, and goes by Paywitness-Outcome."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What came back from one request. No status: nothing did, or not all of it."""

    status_code: int | None = None
    paid: bool = False
    outcome: str | None = None
    operation: str | None = None
    attempts: int | None = None
    retry_after_s: float = 0.0

    @property
    def worth_retrying(self) -> bool:
        return self.status_code is None or self.status_code in RETRIED

    def told(self, goes_by_outcome: bool) -> Told:
        """What the application makes of it when there will be no further try.

        Commonly, what is neither a success nor a decline is taken for a failure: there is nothing else to go by. Who
        goes by the outcome knows better, and without one knows that it does not know.
        """
        if goes_by_outcome and self.outcome in NOT_KNOWN:
            return Told.UNKNOWN
        if self.paid:
            return Told.PAID
        return Told.DECLINED if self.status_code == 402 else Told.FAILED


@dataclass(slots=True)
class Purchase:
    """One payment in one lane, from the start of its job to what its customer is told."""

    lane: Lane
    payment: Payment
    session: aiohttp.ClientSession
    draws: Random
    requests: int = 0
    arrived: int = 0
    keys: set[str] = field(default_factory=set)

    async def run(self) -> Answered:
        began = monotonic()
        heard = await self._call_sdk()
        for _ in range(JOB_RUNS - 1):
            if self._told(heard) in (Told.PAID, Told.DECLINED):
                break
            await asyncio.sleep(JOB_PAUSE_S)
            heard = await self._call_sdk()
        return Answered(
            self.payment.order,
            self._told(heard),
            self.requests,
            len(self.keys),
            round(monotonic() - began, 3),
            heard.operation,
            heard.attempts,
        )

    def _told(self, heard: Heard) -> Told:
        return heard.told(goes_by_outcome=self.lane.through_paywitness)

    async def _call_sdk(self) -> Heard:
        key = self.payment.order if self.lane.key_per_order else self._minted_key()
        self.keys.add(key)
        heard = await self._send(key)
        for retry in range(SDK_TRIES - 1):
            if not heard.worth_retrying:
                break
            backoff_s = min(SDK_BACKOFF_S * 2**retry, SDK_BACKOFF_S_MAX) * self.draws.uniform(0.5, 1.0)
            await asyncio.sleep(max(backoff_s, min(heard.retry_after_s, SDK_BACKOFF_S_MAX)))
            heard = await self._send(key)
        return heard

    def _minted_key(self) -> str:
        return str(uuid.UUID(int=self.draws.getrandbits(128), version=4))

    async def _send(self, key: str) -> Heard:
        self.requests += 1
        url = f"{self.lane.base_url}/v1/charges"
        timeout = aiohttp.ClientTimeout(total=self.lane.patience_s)
        try:
            async with self.session.post(
                url, json=self.payment.body, headers=self._headers(key), timeout=timeout
            ) as response:
                heard = _heard(response, await response.read())
        except aiohttp.ClientConnectorError:  # refused: it reached nobody, so its fault is still to come
            return Heard()
        except (aiohttp.ClientError, TimeoutError):
            heard = Heard()
        self.arrived += 1
        return heard

    def _headers(self, key: str) -> dict[str, str]:
        """Directly, the script's next fault at each request. Through the proxy the whole script, for it sends by
        itself, and the provider counts the arrivals under the one key that the proxy uses."""
        headers = {"Idempotency-Key": key}
        if not self.lane.through_paywitness:
            return {**headers, "Sandbox-Fault": f"{self.payment.fault(self.arrived)}*"}
        return {**headers, "Sandbox-Fault": ",".join(self.payment.script), "Paywitness-Key": self.payment.order}


def _heard(response: aiohttp.ClientResponse, body: bytes) -> Heard:
    retry_after = response.headers.get("Retry-After", "")
    attempts = response.headers.get("Paywitness-Attempts", "")
    return Heard(
        response.status,
        paid=response.status == 200 and _status_in(body) == "succeeded",
        outcome=response.headers.get("Paywitness-Outcome"),
        operation=response.headers.get("Paywitness-Operation"),
        attempts=int(attempts) if attempts.isdigit() else None,
        retry_after_s=float(retry_after) if retry_after.isdigit() else 0.0,
    )


def _status_in(body: bytes) -> object:
    try:
        charge = json.loads(body)
    except ValueError:
        return None
    return charge.get("status") if isinstance(charge, dict) else None


async def pay_all(lane: Lane, payments: list[Payment], seed: int, log: list[Answered]) -> None:
    """All payments of a lane. Each starts at its own time, the same in every lane, however the others fare."""
    gap_s = start_gap_s(len(payments))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a stale connection is no fault of this story
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int, payment: Payment) -> None:
            await asyncio.sleep(number * gap_s)
            draws = Random(f"{seed} {lane.name} {payment.order}")
            log.append(await Purchase(lane, payment, session, draws).run())

        await asyncio.gather(*(one(number, payment) for number, payment in enumerate(payments)))
