"""The outbox: what changes tell, delivered to one HTTP sink as signed CloudEvents. At least once, never dropped.

A change and what it tells are one write, so nothing is lost between the two; here it is only read and sent. How far the
sink has come is a cursor in the journal, moved over what was taken without a gap: after a crash the rest is sent again
under the same ids. Events of one operation go strictly one after the other; those of different operations side by side.
A sink that is down holds up one page, which is all that is kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from proxy.chance import Chance
from proxy.clock import Clock
from proxy.core.backoff import Jitter, RetryRule, delay_s
from proxy.core.cloudevent import CONTENT_TYPE, cloud_event, event_bytes, event_id
from proxy.core.errors import JournalUnavailable, SettingsError
from proxy.core.evidence import Evidence
from proxy.journal.base import Journal, OutcomeRow
from proxy.schemes.standard import sign
from proxy.telemetry.lines import place_of
from proxy.telemetry.records import OutboxDelivered
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.upstream.target import Origin, Timeouts, WireRequest

_log = logging.getLogger("paywitness.outbox")

CURSOR = "sink"
PAGE = 200  # a page of events is half a megabyte at most
LANES = 8  # operations delivered side by side
_IDLE_S = 0.3  # between two looks for something to tell
_CURSOR_EVERY = 25  # events between two moves of the cursor: what is sent twice after a crash
_GONE = 410


@dataclass(frozen=True, slots=True)
class Sink:
    """Where events go. Raises SettingsError for what cannot be delivered to."""

    url: str
    secret: bytes = field(repr=False)  # of the Standard Webhooks scheme: whsec_<base64>, or the key's bytes
    timeouts: Timeouts = Timeouts(first_byte_s=10.0)
    backoff: RetryRule = RetryRule(jitter=Jitter.EQUAL, base_s=0.2, cap_s=30.0)

    def __post_init__(self) -> None:
        try:
            _ = self.origin
            sign("check", 0, b"", self.secret)
        except ValueError as error:
            raise SettingsError(f"the sink of events: {error}") from None

    @property
    def origin(self) -> Origin:
        parts = urlsplit(self.url)
        return Origin.parse(f"{parts.scheme}://{parts.netloc}")

    @property
    def target(self) -> bytes:
        parts = urlsplit(self.url)
        return f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}".encode()


class _Page:
    """What was read, how much of it was taken, and how far the cursor may go."""

    def __init__(self, rows: Iterable[OutcomeRow]) -> None:
        self._waiting = deque(row.seq for row in rows)
        self._taken: set[int] = set()
        self.seq = 0  # everything up to here was taken
        self.unsaved = 0

    def __len__(self) -> int:
        return len(self._waiting) - len(self._taken)

    def took(self, seq: int) -> None:
        self._taken.add(seq)
        while self._waiting and self._waiting[0] in self._taken:
            self.seq = self._waiting.popleft()
            self._taken.discard(self.seq)
            self.unsaved += 1


@dataclass(slots=True)
class Outbox:
    journal: Journal
    upstream: UpstreamClient
    sink: Sink
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    _come_to: int = 0  # further than the journal knows, where it did not take the cursor

    async def keep_delivering(self) -> None:
        """Deliver for ever. A journal that does not answer is asked again."""
        while True:
            try:
                delivered = await self.deliver_page()
            except JournalUnavailable:
                _log.warning("the journal did not answer; what waits for the sink waits on")
                delivered = 0
            except Exception as error:  # noqa: BLE001  # a fault of ours must not end the telling for ever
                _log.error("delivering failed by %s at %s; it is tried again", type(error).__name__, place_of(error))
                await self.clock.sleep(self.sink.backoff.cap_s)
                delivered = 0
            if delivered == 0:
                await self.clock.sleep(_IDLE_S)

    async def deliver_page(self) -> int:
        """Deliver what waits, at most a page, and return when all of it was taken: how many."""
        kept = await self.journal.cursor(CURSOR)
        if kept < self._come_to:
            await self.journal.move_cursor(CURSOR, self._come_to)
        rows = await self.journal.outcomes(max(kept, self._come_to), limit=PAGE)
        if not rows:
            return 0
        by_operation: dict[str, list[OutcomeRow]] = {}
        for row in rows:
            by_operation.setdefault(row.operation.id, []).append(row)
        page, queue = _Page(rows), deque(by_operation.values())
        lanes = (self._lane(queue, page) for _ in range(min(LANES, len(queue))))
        for ending in await asyncio.gather(*lanes, return_exceptions=True):
            if ending is not None:
                raise ending
        await self._save(page)
        return len(rows)

    async def _lane(self, queue: deque[list[OutcomeRow]], page: _Page) -> None:
        while queue:
            for row in queue.popleft():
                await self._deliver(row, page)
                page.took(row.seq)
                self.telemetry.tell(OutboxDelivered(1, failed=False, lag=len(page)))
                if page.unsaved >= _CURSOR_EVERY:
                    await self._save(page)

    async def _deliver(self, row: OutcomeRow, page: _Page) -> None:
        """Offer one event until it is taken."""
        if row.entry.told is None:
            return
        body = event_bytes(cloud_event(row.operation, row.entry))
        tries = 0
        while True:
            evidence = await self._offer(event_id(row.operation, row.entry), body)
            response = evidence.response
            if response is not None and 200 <= response.status_code < 300:
                return
            tries += 1
            wait_s = delay_s(self.sink.backoff, tries, self.chance.draw())
            self._say_not_taken(row, evidence, tries, wait_s)
            self.telemetry.tell(OutboxDelivered(1, failed=True, lag=len(page)))
            await self._save(page)  # a process that ends while the sink is down need not repeat what was taken
            await self.clock.sleep(wait_s)

    async def _offer(self, message_id: str, body: bytes) -> Evidence:
        headers = (
            (b"Content-Type", CONTENT_TYPE.encode()),
            (b"User-Agent", b"paywitness"),
            *sign(message_id, int(self.clock.now()), body, self.sink.secret),
        )
        request = WireRequest("POST", self.sink.target, headers, body)
        return await self.upstream.send(self.sink.origin, request, self.sink.timeouts)

    def _say_not_taken(self, row: OutcomeRow, evidence: Evidence, tries: int, wait_s: float) -> None:
        response = evidence.response
        if response is not None and response.status_code == _GONE:
            _log.error(
                "the sink answers 410 Gone to event %s: it wants no more of them, but events are never dropped. Take "
                "the sink out of the settings, or bring it back; next try in %.1f s",
                event_id(row.operation, row.entry),
                wait_s,
            )
            return
        why = f"status {response.status_code}" if response is not None else str(evidence.fault)
        # One line for an outage, then one every so often: it may last for hours.
        level = logging.WARNING if tries in {1, 5} or tries % 20 == 0 else logging.DEBUG
        _log.log(
            level,
            "the sink did not take event %s (%s, try %d); next try in %.1f s",
            event_id(row.operation, row.entry),
            why,
            tries,
            wait_s,
        )

    async def _save(self, page: _Page) -> None:
        """Move the cursor over what was taken without a gap. A journal that does not answer is told later."""
        async with self._saving:
            if page.unsaved == 0:
                return
            seq, saved = page.seq, page.unsaved
            self._come_to = max(self._come_to, seq)
            try:
                await self.journal.move_cursor(CURSOR, seq)
            except JournalUnavailable:
                _log.warning("the journal did not take how far the sink has come; the end of it may be sent twice")
            else:
                page.unsaved -= saved
