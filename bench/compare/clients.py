"""One run of a job, by the lane's client: what it heard, in the end, about the money.

A client is as careful as it can be: what it cannot know it calls unknown, and never a failure. It knows that nothing
was done when it could not connect, when the provider says so (503 overloaded, 429), or when a proxy says so.
"""

from __future__ import annotations

import asyncio
import functools
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import aiohttp
import stripe

from bench.compare.lanes import LOOP_PAUSE_S, STRIPE_RETRIES, TENACITY_TRIES, TRIES, Client, Keys, Lane
from bench.compare.scenarios import CALL_S, PATIENCE_S, TRY_S
from paywitness.demo.score import ReportedOutcome

RETRIED = frozenset({409, 429, *range(500, 600)})
AMOUNT = 1099
API_KEY = "sk_test_compare"
NOTHING_WAS_SENT = (b"no healthy upstream", b"remote connection failure")  # Envoy's words


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of one try, or of one run."""

    told: ReportedOutcome
    worth_retrying: bool = True


PAID, DECLINED = Heard(ReportedOutcome.PAID, False), Heard(ReportedOutcome.DECLINED, False)
NOTHING_DONE, NOT_KNOWN = Heard(ReportedOutcome.FAILED), Heard(ReportedOutcome.UNKNOWN)


def together(heard: list[Heard]) -> Heard:
    """Of several tries: the last one's word, unless it says "not paid" and an earlier one does not know."""
    last = heard[-1]
    in_doubt = last.told is ReportedOutcome.FAILED and any(one.told is ReportedOutcome.UNKNOWN for one in heard)
    return replace(last, told=ReportedOutcome.UNKNOWN) if in_doubt else last


class Runs(Protocol):
    async def run(self, order: str, url: str) -> Heard:
        """One run of the job of this order."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """One request, and no more."""

    lane: Lane
    session: aiohttp.ClientSession
    patience_s: float = PATIENCE_S

    async def run(self, order: str, url: str) -> Heard:
        headers = {"Authorization": f"Bearer {API_KEY}", **key_headers(self.lane.keys, order)}
        body = {"amount": AMOUNT, "currency": "EUR", "source": "tok_ok", "metadata": {"order_id": order}}
        timeout = aiohttp.ClientTimeout(total=self.patience_s)
        try:
            async with self.session.post(f"{url}/v1/charges", json=body, headers=headers, timeout=timeout) as response:
                return heard(response.status, response.headers, await response.read())
        except aiohttp.ClientConnectorError:
            return NOTHING_DONE
        except (aiohttp.ClientError, TimeoutError):
            return NOT_KNOWN


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` around the request."""

    plain: Plain

    async def run(self, order: str, url: str) -> Heard:
        tries: list[Heard] = []
        for number in range(TRIES):
            if number:
                await asyncio.sleep(LOOP_PAUSE_S)
            tries.append(await self.plain.run(order, url))
            if not tries[-1].worth_retrying:
                break
        return together(tries)


@dataclass(frozen=True, slots=True)
class Tenacity:
    plain: Plain
    tenacity: Any  # the module; it lives with the peers

    async def run(self, order: str, url: str) -> Heard:
        tries: list[Heard] = []
        tenacity = self.tenacity

        async def one() -> Heard:
            tries.append(await self.plain.run(order, url))
            return tries[-1]

        await tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(TENACITY_TRIES) | tenacity.stop_after_delay(CALL_S),
            wait=tenacity.wait_random_exponential(0.2, max=2),
            retry=tenacity.retry_if_result(lambda heard: heard.worth_retrying),
            retry_error_callback=lambda state: None,
        )(one)
        return together(tries)


class StripeConnections(stripe.AIOHTTPClient):
    """The SDK's client over aiohttp, with the session that all lanes share: a fresh connection for every try, and any
    number of them. Its default over httpx has a hundred, and in an outage they were all taken, and never given back.
    As to that one, a body that is cut off is a connection that was lost, and is tried again."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        super().__init__(timeout=aiohttp.ClientTimeout(total=TRY_S), session=session)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        try:
            return await super().request_async(method, url, headers, post_data)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._handle_request_error(error)


@dataclass(frozen=True, slots=True)
class StripeSdk:
    """The SDK as it is. Its tries are its own affair: when it gives up, nobody knows what the earlier ones did."""

    lane: Lane
    connections: StripeConnections

    async def run(self, order: str, url: str) -> Heard:
        client = _stripe_client(url, self.connections)
        options: Any = {"idempotency_key": order} if self.lane.keys is Keys.ORDER else {}
        params: Any = {"amount": AMOUNT, "currency": "eur", "confirm": True, "metadata": {"order_id": order}}
        try:
            intent = await client.v1.payment_intents.create_async(params, options)
        except stripe.CardError:
            return DECLINED
        except stripe.StripeError:
            return NOT_KNOWN
        return PAID if intent.status == "succeeded" else NOT_KNOWN


@functools.cache
def _stripe_client(url: str, connections: StripeConnections) -> stripe.StripeClient:
    return stripe.StripeClient(
        API_KEY,
        base_addresses={"api": url},
        max_network_retries=STRIPE_RETRIES,
        http_client=connections,
    )


def client_of(lane: Lane, session: aiohttp.ClientSession, tenacity: Any) -> Runs:
    if lane.client is Client.STRIPE:
        return StripeSdk(lane, StripeConnections(session))
    if lane.client is Client.ONE_TRY:
        return Plain(lane, session)
    plain = Plain(lane, session, TRY_S)
    return Loop(plain) if lane.client is Client.LOOP else Tenacity(plain, tenacity)


def key_headers(keys: Keys, order: str) -> dict[str, str]:
    if keys is Keys.NONE:
        return {}
    return {"Idempotency-Key": order if keys is Keys.ORDER else str(uuid.uuid4())}


def heard(status_code: int, headers: Mapping[str, str], body: bytes) -> Heard:
    """What a client makes of an answer; with an outcome beside it, it goes by that."""
    answer = _tree(body)
    if status_code == 200 and answer.get("status") == "succeeded":
        return PAID
    if status_code == 402:
        return DECLINED
    told = ReportedOutcome.FAILED if _nothing_was_done(status_code, headers, answer, body) else ReportedOutcome.UNKNOWN
    return Heard(told, status_code in RETRIED or status_code == 200)


def _nothing_was_done(status_code: int, headers: Mapping[str, str], answer: dict[str, Any], body: bytes) -> bool:
    if "Paywitness-Outcome" in headers:
        return headers["Paywitness-Outcome"] in ("not_sent", "absent", "failed")
    if not _tried_once(headers):
        return False  # what the last try says is not what the one before it did
    if "x-envoy-attempt-count" in headers and any(words in body for words in NOTHING_WAS_SENT):
        return True
    error = answer.get("error")
    return status_code == 429 or (isinstance(error, dict) and error.get("code") == "overloaded")


def _tried_once(headers: Mapping[str, str]) -> bool:
    """As far as a proxy tells: Envoy counts its tries, nginx lists what each of them was answered."""
    return headers.get("x-envoy-attempt-count", "1") == "1" and "," not in headers.get("x-upstream-status", "")


def _tree(body: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(body)
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}
