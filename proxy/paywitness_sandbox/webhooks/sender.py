"""Sends events when they are due, one after the other. Each is sent until it is received or its attempts are used up.

The queue, the kept events and every attempt are bounded. One task does the sending. It starts with the first delivery
and ends with the sandbox.
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

EVENTS_MAX = 10_000  # kept for reading and for sending again; the oldest are forgotten first
DELIVERIES_MAX = 10_000  # waiting; one more is kept unsent
ATTEMPT_S_MAX = 5.0
EARLY_S_MAX = 2.0
RETRY_DELAY_S = 0.1  # after the first failed attempt; doubles
RETRY_DELAY_S_MAX = 2.0
FORGED_SECRET_SUFFIX = "-forged"

logger = logging.getLogger("paywitness.sandbox")


@dataclass(slots=True)
class EventRecord:
    """The result of one event."""

    event: SandboxEvent
    mode: str
    waiting: int = 0
    """Deliveries that have not ended."""
    tries: int = 0
    received: int = 0
    """Attempts with a 2xx reply."""
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
    """One delivery of an event: its time, its copies, its signature."""

    due_mono: float
    number: int
    record: EventRecord = field(compare=False)
    copies: int = field(default=1, compare=False)
    concurrent: bool = field(default=False, compare=False)
    """All copies at once, rather than one after the other."""
    forged: bool = field(default=False, compare=False)
    age_s: float = field(default=0.0, compare=False)
    on_done: Callable[[], None] | None = field(default=None, compare=False)


class WebhookSender:
    def __init__(self, clock: Clock) -> None:
        self.endpoint: Endpoint | None = None
        """Read on every attempt, so that a waiting event goes to the present endpoint."""
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

    # -- records --------------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[EventRecord]:
        """Oldest first."""
        return list(self._records.values())

    @property
    def waiting(self) -> int:
        """Deliveries that have not ended, and actions that are due later."""
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

    # -- sending --------------------------------------------------------------------------------------------------

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
        """Try once, at once. If it fails, the delivery waits in the queue like any other."""
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
        """Forget everything, also the events under way, so that no old event reaches the fresh ledger."""
        self._stop_sending()
        self._records.clear()
        self.dropped = 0

    async def close(self) -> None:
        """The records can still be read."""
        self._stop_sending()
        await asyncio.gather(*self._ending, return_exceptions=True)  # we have just cancelled them
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
        except Exception:  # our own mistake must not keep the other events unsent
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
        """Returns True if it was received."""
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
