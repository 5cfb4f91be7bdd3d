"""Sends events: one after the other as they fall due, each until it is received or has been tried often enough.

What waits is bounded, what is kept is bounded, every try is bounded. One task does the sending; it begins with the
first errand and ends with the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from proxy.sandbox.clock import Clock
from proxy.sandbox.refusals import NotFound
from proxy.sandbox.webhooks.endpoint import Endpoint
from proxy.sandbox.webhooks.event import Event
from proxy.sandbox.webhooks.signature import signature_headers

EVENTS_MAX = 10_000  # kept for looking at and for sending again; the oldest are forgotten first
ERRANDS_MAX = 10_000  # waiting; one more is kept unsent
TRY_S_MAX = 5.0
EARLY_S_MAX = 2.0
PAUSE_S = 0.1  # after the first failed try; doubles
PAUSE_S_MAX = 2.0
FORGER_SUFFIX = "-forged"

logger = logging.getLogger("paywitness.sandbox")


@dataclass(slots=True)
class Record:
    """What became of one event."""

    event: Event
    mode: str
    waiting: int = 0
    """Errands that have not ended."""
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
class Errand:
    """One telling of an event: when, how often, how signed."""

    due_mono: float
    number: int
    record: Record = field(compare=False)
    copies: int = field(default=1, compare=False)
    at_once: bool = field(default=False, compare=False)
    """All copies together, rather than one after the other."""
    forged: bool = field(default=False, compare=False)
    age_s: float = field(default=0.0, compare=False)
    afterwards: Callable[[], None] | None = field(default=None, compare=False)


class Courier:
    def __init__(self, clock: Clock) -> None:
        self.endpoint: Endpoint | None = None
        """Looked at on every try, so that what waits goes to where the receiver is now."""
        self.dropped = 0
        self._clock = clock
        self._records: dict[str, Record] = {}
        self._errands: list[Errand] = []
        self._numbered = 0
        self._later: set[asyncio.TimerHandle] = set()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    # -- what was told --------------------------------------------------------------------------------------------

    @property
    def records(self) -> list[Record]:
        """Oldest first."""
        return list(self._records.values())

    @property
    def waiting(self) -> int:
        """Errands that have not ended, and what is to be done later."""
        return sum(record.waiting for record in self._records.values()) + len(self._later)

    def record(self, event: str) -> Record:
        if event not in self._records:
            raise NotFound(f"no such event: {event}")
        return self._records[event]

    def keep(self, event: Event, mode: str) -> Record:
        record = self._records[event.id] = Record(event, mode)
        if len(self._records) > EVENTS_MAX:
            del self._records[next(iter(self._records))]
            self.dropped += 1
        return record

    # -- telling --------------------------------------------------------------------------------------------------

    def errand(self, record: Record, *, delay_s: float = 0.0) -> Errand:
        self._numbered += 1
        return Errand(asyncio.get_running_loop().time() + delay_s, self._numbered, record)

    def send(self, errand: Errand) -> None:
        if len(self._errands) >= ERRANDS_MAX:
            errand.record.last_error = f"not sent: {ERRANDS_MAX} others are waiting"
            return
        errand.record.waiting += 1
        heapq.heappush(self._errands, errand)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sandbox webhooks")

    async def send_now(self, errand: Errand) -> None:
        """One try, here and now; if it fails, the errand waits its turn like any other."""
        received = False
        with contextlib.suppress(TimeoutError):  # then it was not received
            async with asyncio.timeout(EARLY_S_MAX):
                received = await self._try(errand)
        if not received:
            self.send(errand)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        def do() -> None:
            self._later.discard(handle)
            act()

        handle = asyncio.get_running_loop().call_later(delay_s, do)
        self._later.add(handle)

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
        for handle in self._later:
            handle.cancel()
        self._later.clear()
        for errand in self._errands:
            errand.record.waiting -= 1
        self._errands.clear()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            wait_s = self._errands[0].due_mono - asyncio.get_running_loop().time() if self._errands else None
            if wait_s is not None and wait_s <= 0:
                await self._do(heapq.heappop(self._errands))
                continue
            with contextlib.suppress(TimeoutError):  # the next one is due
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def _do(self, errand: Errand) -> None:
        try:
            if errand.at_once:
                await asyncio.gather(*(self._deliver(errand) for _ in range(errand.copies)))
            else:
                for _ in range(errand.copies):
                    await self._deliver(errand)
            if errand.afterwards is not None and self.endpoint is not None:
                errand.afterwards()
        except Exception:  # our own mistake, and no reason to leave the other events unsent
            logger.exception("the sandbox itself failed at the event %s", errand.record.event.id)
        finally:
            errand.record.waiting -= 1

    async def _deliver(self, errand: Errand) -> None:
        pause_s = PAUSE_S
        tries = 0
        while (endpoint := self.endpoint) is not None:
            tries += 1
            if await self._try(errand) or tries >= endpoint.tries_max:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _try(self, errand: Errand) -> bool:
        """True when it was received."""
        endpoint, record = self.endpoint, errand.record
        if endpoint is None:
            return False
        body = record.event.body
        secret = endpoint.secret + FORGER_SUFFIX if errand.forged else endpoint.secret
        headers = signature_headers(endpoint.scheme, secret, body, int(self._clock() - errand.age_s))
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
            timeout = aiohttp.ClientTimeout(total=TRY_S_MAX)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self._session
