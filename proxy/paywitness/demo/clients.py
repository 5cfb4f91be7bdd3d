"""The applications: a job that pays an order with a provider's SDK, and runs again when the SDK gives up.

All contestants use one client, modelled on real SDKs: it retries connection errors, timeouts, 409, 429 and 5xx twice,
with backoff and Retry-After, under one idempotency key for each call. A job that runs again makes a new call, and a new
call makes a new key. The differences between contestants are only in `Contestant`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass, field
from random import Random
from time import monotonic

import aiohttp

from paywitness.demo.score import CallerResult, ReportedOutcome

# --- Payments and faults
# The payments, and the fault of each request that reaches the provider. From one seed, the same for every contestant.
#
# The n-th request of a payment that reaches the provider meets the n-th fault of its script, whatever its sender and
# its key. So the contestants differ in how they handle a fault, and never in the faults that they get at the same
# point.

# The number of requests in a hundred that meet each fault; the others are served properly. The faults are many on
# purpose: a hundred payments must show in half a minute what a shop sees in a bad quarter.
FAULTS = {
    "drop_after_commit": 7,
    "reset_after_commit": 4,
    "truncated_body": 3,
    "hang_after_commit": 3,
    "late_commit(late_s=2.5)": 1,
    "error_500_after_commit": 3,
    "html_504_after_commit": 2,
    "reset_before_commit": 4,
    "hang_before_commit": 2,
    "error_500_before_commit": 2,
    "error_503": 4,
    "html_502": 2,
    "rate_limited(retry_after_s=1)": 4,
    "slow(slow_s=0.7)": 5,
}
NO_FAULT = "-"
SCRIPT_ITEMS = 16  # more requests than a payment ever makes here; later ones meet no fault

SOURCES = {"tok_ok": 94, "tok_insufficient_funds": 3, "tok_stolen_card": 2, "tok_expired_card": 1}
AMOUNT_MINOR_MIN, AMOUNT_MINOR_MAX = 500, 25_000
CURRENCY = "EUR"

START_SPAN_S = 18.0  # the payments of a run start within this time, evenly spread
START_GAP_S_MAX = 0.2
START_GAP_S_MIN = (
    0.06  # faster, and a small machine would cause faults: 300 payments fit into the span, more take longer
)
OUTAGE_AT = 0.4  # of the span
OUTAGE_S = 2.0


@dataclass(frozen=True, slots=True)
class DemoPayment:
    order: str
    amount: int
    source: str
    script: tuple[str, ...]

    def fault(self, arrived: int) -> str:
        """The fault of the next request, after `arrived` requests have reached the provider."""
        return self.script[arrived] if arrived < len(self.script) else NO_FAULT

    @property
    def body(self) -> dict[str, object]:
        return {
            "amount": self.amount,
            "currency": CURRENCY,
            "source": self.source,
            "metadata": {"order_id": self.order},
        }


def payments(count: int, seed: int) -> list[DemoPayment]:
    draws = Random(seed)
    return [_payment(number, draws) for number in range(1, count + 1)]


def _payment(number: int, draws: Random) -> DemoPayment:
    amount = draws.randint(AMOUNT_MINOR_MIN, AMOUNT_MINOR_MAX)
    source = draws.choices(list(SOURCES), list(SOURCES.values()))[0]
    names = [NO_FAULT, *FAULTS]
    weights = [100 - sum(FAULTS.values()), *FAULTS.values()]
    return DemoPayment(f"order-{number:04d}", amount, source, tuple(draws.choices(names, weights, k=SCRIPT_ITEMS)))


def start_gap_s(count: int) -> float:
    return max(START_GAP_S_MIN, min(START_GAP_S_MAX, START_SPAN_S / count))


def outage(count: int) -> dict[str, object]:
    """The schedule of a provider: once, for a short time, it does not listen."""
    start_s = OUTAGE_AT * start_gap_s(count) * count
    return {"outages": [{"mode": "refuse", "start_s": start_s, "duration_s": OUTAGE_S}]}


# --- Clients

SDK_TRIES = 3  # stripe's default for a module-level client; most others try once
SDK_BACKOFF_S, SDK_BACKOFF_S_MAX = 0.3, 2.0  # stripe's are 0.5 and 5; this demo has a minute in all
JOB_RUNS = 2
JOB_PAUSE_S = 1.0

RETRIED = frozenset({409, 429, *range(500, 600)})
NOT_KNOWN = frozenset({"unknown", "in_flight", "pending", None})


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    title: str
    description: str
    base_url: str
    timeout_s: float
    """How long the client waits for a response."""
    key_per_order: bool = False
    """Whether the application gives the SDK its own key, the same for every attempt at an order."""
    through_paywitness: bool = False
    """Whether it adds Paywitness-Key, and reads Paywitness-Outcome."""


@dataclass(frozen=True, slots=True)
class SdkResponse:
    """The response to one request. No status: there was no response, or not a whole one."""

    status_code: int | None = None
    paid: bool = False
    outcome: str | None = None
    operation: str | None = None
    attempts: int | None = None
    retry_after_s: float = 0.0

    @property
    def worth_retrying(self) -> bool:
        return self.status_code is None or self.status_code in RETRIED

    def reported_outcome(self, uses_outcome_header: bool) -> ReportedOutcome:
        """The application's conclusion after the last attempt.

        Usually an application takes everything that is neither a success nor a decline as a failure, because it knows
        nothing better. An application that reads the outcome knows better. Without one, it knows that the result is
        unknown.
        """
        if uses_outcome_header and self.outcome in NOT_KNOWN:
            return ReportedOutcome.UNKNOWN
        if self.paid:
            return ReportedOutcome.PAID
        return ReportedOutcome.DECLINED if self.status_code == 402 else ReportedOutcome.FAILED


@dataclass(slots=True)
class PaymentJob:
    """One payment of one contestant, from the start of its job to the result that its customer sees."""

    contestant: Contestant
    payment: DemoPayment
    session: aiohttp.ClientSession
    draws: Random
    requests: int = 0
    arrived: int = 0
    keys: set[str] = field(default_factory=set)

    async def run(self) -> CallerResult:
        began = monotonic()
        result = await self._call_sdk()
        for _ in range(JOB_RUNS - 1):
            if self._reported_outcome(result) in (ReportedOutcome.PAID, ReportedOutcome.DECLINED):
                break
            await asyncio.sleep(JOB_PAUSE_S)
            result = await self._call_sdk()
        return CallerResult(
            self.payment.order,
            self._reported_outcome(result),
            self.requests,
            len(self.keys),
            round(monotonic() - began, 3),
            result.operation,
            result.attempts,
        )

    def _reported_outcome(self, result: SdkResponse) -> ReportedOutcome:
        return result.reported_outcome(uses_outcome_header=self.contestant.through_paywitness)

    async def _call_sdk(self) -> SdkResponse:
        key = self.payment.order if self.contestant.key_per_order else self._new_key()
        self.keys.add(key)
        result = await self._send(key)
        for retry in range(SDK_TRIES - 1):
            if not result.worth_retrying:
                break
            backoff_s = min(SDK_BACKOFF_S * 2**retry, SDK_BACKOFF_S_MAX) * self.draws.uniform(0.5, 1.0)
            await asyncio.sleep(max(backoff_s, min(result.retry_after_s, SDK_BACKOFF_S_MAX)))
            result = await self._send(key)
        return result

    def _new_key(self) -> str:
        return str(uuid.UUID(int=self.draws.getrandbits(128), version=4))

    async def _send(self, key: str) -> SdkResponse:
        self.requests += 1
        url = f"{self.contestant.base_url}/v1/charges"
        timeout = aiohttp.ClientTimeout(total=self.contestant.timeout_s)
        try:
            async with self.session.post(
                url, json=self.payment.body, headers=self._headers(key), timeout=timeout
            ) as response:
                result = _parse_response(response, await response.read())
        except aiohttp.ClientConnectorError:  # refused: the request reached nobody, so its fault is still to come
            return SdkResponse()
        except (aiohttp.ClientError, TimeoutError):
            result = SdkResponse()
        self.arrived += 1
        return result

    def _headers(self, key: str) -> dict[str, str]:
        """The faults to inject. Without the sidecar, each request carries the script's next fault. Through the sidecar
        it carries the whole script: the sidecar retries by itself, and the provider counts arrivals under its one
        key."""
        headers = {"Idempotency-Key": key}
        if not self.contestant.through_paywitness:
            return {**headers, "Sandbox-Fault": f"{self.payment.fault(self.arrived)}*"}
        return {**headers, "Sandbox-Fault": ",".join(self.payment.script), "Paywitness-Key": self.payment.order}


def _parse_response(response: aiohttp.ClientResponse, body: bytes) -> SdkResponse:
    retry_after = response.headers.get("Retry-After", "")
    attempts = response.headers.get("Paywitness-Attempts", "")
    return SdkResponse(
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


async def pay_all(contestant: Contestant, payments: list[DemoPayment], seed: int, log: list[CallerResult]) -> None:
    """All payments of a contestant. Each starts at its own time, the same for every contestant, whatever the others
    do."""
    gap_s = start_gap_s(len(payments))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a stale connection must not add a fault
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int, payment: DemoPayment) -> None:
            await asyncio.sleep(number * gap_s)
            draws = Random(f"{seed} {contestant.name} {payment.order}")
            log.append(await PaymentJob(contestant, payment, session, draws).run())

        await asyncio.gather(*(one(number, payment) for number, payment in enumerate(payments)))
