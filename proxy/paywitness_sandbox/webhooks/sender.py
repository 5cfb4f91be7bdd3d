"""Sends events: one after the other as they fall due, each until it is received or has been tried often enough.

What waits is bounded, what is kept is bounded, every try is bounded. One task does the sending; it begins with the
first delivery and ends with the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from paywitness_sandbox.bank.objects import ObjectNotFound
from paywitness_sandbox.clock import Clock
from paywitness_sandbox.webhooks.events import Endpoint, SandboxEvent, signature_headers

EVENTS_MAX = 10_000  # kept for looking at and for sending again; the oldest are forgotten first
DELIVERIES_MAX = 10_000  # waiting; one more is kept unsent
ATTEMPT_S_MAX = 5.0
EARLY_S_MAX = 2.0
RETRY_DELAY_S = 0.1  # after the first failed try; doubles
RETRY_DELAY_S_MAX = 2.0
FORGED_SECRET_SUFFIX = "-forged"

logger = logging.getLogger("paywitness.sandbox")


@dataclass(slots=True)
class EventRecord:
    """What became of one event."""

    event: SandboxEvent
    mode: str
    waiting: int = 0
    """Deliveries that have not ended."""
    tries: int = 0
    received: int = 0
    """Tries that were answered 2xx."""
    last_status_code: int | None = None
    last_error: str | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.event.id,
            "type": self.event.type,
            "object": self.event.data.get("id"),
            "mode": self.mode,
            "state": self.state,
            "tries": self.tries,
            "received": self.received,
            "last_status_code": self.last_status_code,
            "last_error": self.last_error,
        }

    @property
    def state(self) -> str:
        if self.waiting:
            return "waiting"
        if self.received:
            return "received"
        return "given_up" if self.tries else "kept"


@dataclass(order=True, slots=True)
class ScheduledDelivery:
    """One telling of an event: when, how often, how signed."""

    due_mono: float
    number: int
    record: EventRecord = field(compare=False)
    copies: int = field(default=1, compare=False)
    concurrent: bool = field(default=False, compare=False)
    """All copies together, rather than one after the other."""
    forged: bool = field(default=False, compare=False)
    age_s: float = field(default=0.0, compare=False)
    on_done: Callable[[], None] | None = field(default=None, compare=False)


class WebhookSender:
    def __init__(self, clock: Clock) -> None:
        self.endpoint: Endpoint | None = None
        """Looked at on every try, so that what waits goes to where the receiver is now."""
        self.dropped = 0
        self._clock = clock
        self._records: dict[str, EventRecord] = {}
        self._deliveries: list[ScheduledDelivery] = []
        self._last_number = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    # -- what was told --------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[EventRecord]:
        """Oldest first."""
        return list(self._records.values())

    @property
    def waiting(self) -> int:
        """Deliveries that have not ended, and what is to be done later."""
        return sum(record.waiting for record in self._records.values()) + len(self._timers)

    def record(self, event: str) -> EventRecord:
        if event not in self._records:
            raise ObjectNotFound(f"no such event: {event}")
        return self._records[event]

    def store(self, event: SandboxEvent, mode: str) -> EventRecord:
        record = self._records[event.id] = EventRecord(event, mode)
        if len(self._records) > EVENTS_MAX:
            del self._records[next(iter(self._records))]
            self.dropped += 1
        return record

    # -- telling --------------------------------------------------------------------------------------------------

    def new_delivery(self, record: EventRecord, *, delay_s: float = 0.0) -> ScheduledDelivery:
        self._last_number += 1
        return ScheduledDelivery(asyncio.get_running_loop().time() + delay_s, self._last_number, record)

    def send(self, delivery: ScheduledDelivery) -> None:
        if len(self._deliveries) >= DELIVERIES_MAX:
            delivery.record.last_error = f"not sent: {DELIVERIES_MAX} others are waiting"
            return
        delivery.record.waiting += 1
        heapq.heappush(self._deliveries, delivery)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sandbox webhooks")

    async def send_now(self, delivery: ScheduledDelivery) -> None:
        """One try, here and now; if it fails, the delivery waits its turn like any other."""
        received = False
        with contextlib.suppress(TimeoutError):  # then it was not received
            async with asyncio.timeout(EARLY_S_MAX):
                received = await self._attempt(delivery)
        if not received:
            self.send(delivery)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(handle)
            action()

        handle = asyncio.get_running_loop().call_later(delay_s, run)
        self._timers.add(handle)

    def clear(self) -> None:
        """Forget everything, also what is being sent: nothing of the past reaches the fresh ledger."""
        self._stop_sending()
        self._records.clear()
        self.dropped = 0

    async def close(self) -> None:
        """What was told can still be looked at."""
        self._stop_sending()
        await asyncio.gather(*self._ending, return_exceptions=True)  # we have just ended them
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- inside ---------------------------------------------------------------------------------------------------

    def _stop_sending(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._ending.add(self._task)
            self._task.add_done_callback(self._ending.discard)
            self._task = None
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()
        for delivery in self._deliveries:
            delivery.record.waiting -= 1
        self._deliveries.clear()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            wait_s = self._deliveries[0].due_mono - asyncio.get_running_loop().time() if self._deliveries else None
            if wait_s is not None and wait_s <= 0:
                await self._run_delivery(heapq.heappop(self._deliveries))
                continue
            with contextlib.suppress(TimeoutError):  # the next one is due
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def _run_delivery(self, delivery: ScheduledDelivery) -> None:
        try:
            if delivery.concurrent:
                await asyncio.gather(*(self._deliver_copy(delivery) for _ in range(delivery.copies)))
            else:
                for _ in range(delivery.copies):
                    await self._deliver_copy(delivery)
            if delivery.on_done is not None and self.endpoint is not None:
                delivery.on_done()
        except Exception:  # our own mistake, and no reason to leave the other events unsent
            logger.exception("the sandbox itself failed at the event %s", delivery.record.event.id)
        finally:
            delivery.record.waiting -= 1

    async def _deliver_copy(self, delivery: ScheduledDelivery) -> None:
        retry_delay_s = RETRY_DELAY_S
        tries = 0
        while (endpoint := self.endpoint) is not None:
            tries += 1
            if await self._attempt(delivery) or tries >= endpoint.tries_max:
                return
            await asyncio.sleep(retry_delay_s)
            retry_delay_s = min(2 * retry_delay_s, RETRY_DELAY_S_MAX)

    async def _attempt(self, delivery: ScheduledDelivery) -> bool:
        """True when it was received."""
        endpoint, record = self.endpoint, delivery.record
        if endpoint is None:
            return False
        body = record.event.body
        secret = endpoint.secret + FORGED_SECRET_SUFFIX if delivery.forged else endpoint.secret
        headers = signature_headers(endpoint.scheme, secret, body, int(self._clock() - delivery.age_s))
        record.tries += 1
        try:
            async with self._client().post(
                endpoint.url, data=body, headers={"Content-Type": "application/json", **headers}, allow_redirects=False
            ) as response:
                record.last_status_code, record.last_error = response.status, None
                if not 200 <= response.status < 300:
                    return False
                record.received += 1
                return True
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            record.last_status_code, record.last_error = None, f"{type(error).__name__}: {error}"
            return False

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ATTEMPT_S_MAX)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self._session
