"""The outbox: delivers announcements to one HTTP sink as signed CloudEvents. At least once; none is ever dropped.

A change and its announcement are one write, so nothing is lost between the two. This module only reads and sends. The
cursor in the journal is the position of the sink: everything up to it was delivered, without a gap. After a crash the
rest is sent again under the same ids. Events of one operation go strictly one after the other, those of different
operations side by side. A sink that is down holds up one page, and no more than that is kept in memory.

In a fleet one sidecar delivers at a time: the holder of the cursor. It holds the cursor by a lease and renews it. When
the holder is gone, the next sidecar continues from the cursor. A sidecar that lost the cursor sends nothing more, and
cannot move it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from paywitness.clock import Clock
from paywitness.core.announcements import CONTENT_TYPE, cloud_events, event_bytes
from paywitness.core.errors import JournalUnavailable, SettingsError
from paywitness.core.evidence import Evidence
from paywitness.core.policy import UpstreamTimeouts
from paywitness.core.retry import Jitter, RetryRule, backoff_delay_s
from paywitness.engine.durability.due_times import Wakeup
from paywitness.journal.base import AnnouncementRow, Journal
from paywitness.randomness import Randomness
from paywitness.repeated_lines import REPEATS
from paywitness.tasks import Tasks
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import JournalUnanswered, OutboxDelivered
from paywitness.telemetry.logs import raised_at
from paywitness.upstream.client import UpstreamClient
from paywitness.upstream.request import OPERATOR_GIVEN_TRUST, Origin, WireRequest
from paywitness.webhook_signatures.standard_webhooks import sign

_log = logging.getLogger("paywitness.outbox")

CURSOR = "sink"
PAGE_SIZE = 200  # a page of events is half a megabyte at most
CONCURRENT_OPERATIONS_MAX = 8  # operations delivered side by side
_RETRY_AFTER_S = 0.3  # if the journal did not answer
_CURSOR_EVERY = 25  # events between two moves of the cursor, and so at most what is sent twice after a crash
_GONE = 410
# After the deliverer dies, nothing is delivered for this long and until the next sidecar asks for the cursor.
CURSOR_LEASE_S = 15.0
# Two renewals may fail. A sidecar that does not hold the cursor asks for it at the same interval.
RENEWALS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class Sink:
    """The address that gets the events. Raises SettingsError if nothing can be delivered to it."""

    url: str
    secret: bytes = field(repr=False)  # of the Standard Webhooks scheme: whsec_<base64>, or the key's bytes
    timeouts: UpstreamTimeouts = UpstreamTimeouts(first_byte_s=10.0)
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
        return Origin.parse(f"{parts.scheme}://{parts.netloc}", OPERATOR_GIVEN_TRUST)

    @property
    def target(self) -> bytes:
        parts = urlsplit(self.url)
        return f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}".encode()


class _Page:
    """A page of events that was read, how much of it was delivered, and how far the cursor may go."""

    def __init__(self, rows: Iterable[AnnouncementRow]) -> None:
        self._waiting = deque(row.seq for row in rows)
        self._delivered: set[int] = set()
        self.delivered_seq = 0  # everything up to here was delivered
        self.unsaved = 0

    def __len__(self) -> int:
        return len(self._waiting) - len(self._delivered)

    def mark_delivered(self, seq: int) -> None:
        self._delivered.add(seq)
        while self._waiting and self._waiting[0] in self._delivered:
            self.delivered_seq = self._waiting.popleft()
            self._delivered.discard(self.delivered_seq)
            self.unsaved += 1


@dataclass(slots=True)
class _CursorLease:
    """The right to deliver, and the position of the sink under it."""

    token: str
    expires_boot: float  # by our own clock, from before the request, so that it ends before the journal's
    delivered_seq: int
    saved_seq: int  # the position that the journal has confirmed


@dataclass(slots=True)
class Outbox:
    journal: Journal
    upstream: UpstreamClient
    sink: Sink
    announced: Wakeup
    clock: Clock
    randomness: Randomness
    telemetry: Telemetry
    lease_s: float = CURSOR_LEASE_S
    _save_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: Tasks = field(default_factory=Tasks)
    _token: str = ""
    _lease: _CursorLease | None = None

    async def keep_delivering(self) -> None:
        """Deliver for ever, while this sidecar holds the cursor. If the journal does not answer, try again."""
        try:
            while True:
                await self.clock.sleep(await self._deliver_once())
        finally:
            await self._release_cursor()

    async def _deliver_once(self) -> float:
        """Deliver a page, if this sidecar holds the cursor. Returns how long to wait for the next. A holder with
        nothing to deliver sleeps until something is announced, or until the cursor must be renewed."""
        try:
            delivered = await self.deliver_page()
        except JournalUnavailable:
            self.telemetry.emit(JournalUnanswered("events for the sink"))
            return _RETRY_AFTER_S
        except Exception as error:  # noqa: BLE001  # a fault of ours must not end the telling for ever
            name, place = type(error).__name__, raised_at(error)
            _log.error("delivering failed by %s at %s; it is tried again", name, place, extra=REPEATS)
            return self.sink.backoff.cap_s
        if delivered is None:
            return self.lease_s / RENEWALS_PER_LEASE
        if delivered == 0:
            await self.announced.wait(self.lease_s / RENEWALS_PER_LEASE)
        return 0.0

    async def deliver_page(self) -> int | None:
        """Deliver at most one page of waiting events, and return their number when all were delivered. None if this
        sidecar does not hold the cursor, or has lost it."""
        lease = await self._take_cursor()
        if lease is None:
            return None
        if lease.saved_seq < lease.delivered_seq and not await self._move_cursor(lease):
            return None
        rows = await self.journal.announcements(lease.delivered_seq, limit=PAGE_SIZE)
        if not rows:
            return 0
        page = _Page(rows)
        delivery = self._tasks.start(self._deliver_all(rows, page, lease), "outbox-page")
        try:
            while not delivery.done():
                await asyncio.wait({delivery}, timeout=self.lease_s / RENEWALS_PER_LEASE)
                if not delivery.done() and not await self._renew_cursor(lease):
                    return None
        finally:
            delivery.cancel()
            await asyncio.wait({delivery})  # nothing more is sent once another sidecar has the cursor
        await delivery
        await self._save_cursor(page, lease)
        return len(rows) if self._holds_cursor(lease) else None

    # The cursor.

    async def _take_cursor(self) -> _CursorLease | None:
        """Take the cursor, or renew it; None if another sidecar holds it."""
        requested_boot = self.clock.boot()
        lease = self._lease
        if lease is not None and lease.expires_boot <= requested_boot:
            self._lose_cursor()
            lease = None
        if lease is not None and lease.expires_boot - requested_boot > self.lease_s * (1 - 1 / RENEWALS_PER_LEASE):
            return lease
        self._token = self._token or self.randomness.token()  # the same token again, if the answer to it was lost
        delivered_seq = await self.journal.take_cursor(CURSOR, self._token, self.lease_s)
        if delivered_seq is None:
            self._lose_cursor()
            return None
        if lease is None:
            _log.info("this sidecar delivers events now, after number %d", delivered_seq, extra=REPEATS)
            lease = _CursorLease(self._token, 0.0, delivered_seq, delivered_seq)
        lease.expires_boot = requested_boot + self.lease_s
        self._lease = lease
        return lease

    def _lose_cursor(self) -> None:
        """Forget the cursor and its token, which is good once. Events that the sink took and the journal does not know
        come again."""
        if self._lease is not None:
            _log.warning("the right to deliver events has run out; this sidecar requests it again", extra=REPEATS)
            self.telemetry.emit(OutboxDelivered(0, failed=False, lag=0))
        self._lease, self._token = None, ""

    def _holds_cursor(self, lease: _CursorLease) -> bool:
        return self._lease is lease and lease.expires_boot > self.clock.boot()

    async def _renew_cursor(self, lease: _CursorLease) -> bool:
        """Whether this sidecar still holds the cursor after renewing it. If the journal does not answer, the old lease
        counts."""
        try:
            await self._take_cursor()
        except JournalUnavailable:
            self.telemetry.emit(JournalUnanswered("the right to deliver events, which runs out"))
        return self._holds_cursor(lease)

    async def _release_cursor(self) -> None:
        """Release the cursor, so that the next sidecar can deliver at once."""
        if self._lease is not None:
            with suppress(JournalUnavailable):
                await self.journal.take_cursor(CURSOR, self._lease.token, 0.0)

    # The delivery.

    async def _deliver_all(self, rows: Sequence[AnnouncementRow], page: _Page, lease: _CursorLease) -> None:
        by_operation: dict[str, list[AnnouncementRow]] = {}
        for row in rows:
            by_operation.setdefault(row.operation.id, []).append(row)
        queue = deque(by_operation.values())
        workers = (self._deliver_queue(queue, page, lease) for _ in range(min(CONCURRENT_OPERATIONS_MAX, len(queue))))
        for ending in await asyncio.gather(*workers, return_exceptions=True):
            if ending is not None:
                raise ending

    async def _deliver_queue(self, queue: deque[list[AnnouncementRow]], page: _Page, lease: _CursorLease) -> None:
        while queue:
            for row in queue.popleft():
                if not await self._deliver(row, page, lease):
                    return
                page.mark_delivered(row.seq)
                self.telemetry.emit(OutboxDelivered(1, failed=False, lag=len(page)))
                if page.unsaved >= _CURSOR_EVERY:
                    await self._save_cursor(page, lease)

    async def _deliver(self, row: AnnouncementRow, page: _Page, lease: _CursorLease) -> bool:
        """Send the events of one change, one after the other, each until it is delivered. False if another sidecar has
        the cursor now."""
        if row.entry.announcement is None:
            return True
        for event in cloud_events(row.operation, row.entry):
            if not await self._deliver_event(event["id"], event_bytes(event), page, lease):
                return False
        return True

    async def _deliver_event(self, event_id: str, body: bytes, page: _Page, lease: _CursorLease) -> bool:
        attempts = 0
        while self._holds_cursor(lease):
            evidence = await self._post(event_id, body)
            response = evidence.response
            if response is not None and 200 <= response.status_code < 300:
                return True
            attempts += 1
            wait_s = backoff_delay_s(self.sink.backoff, attempts, self.randomness.draw())
            why = _why_not_taken(evidence)
            _log.debug("the sink did not take event %s (%s, try %d); next in %.1f s", event_id, why, attempts, wait_s)
            self.telemetry.emit(OutboxDelivered(1, failed=True, lag=len(page), why=why, gone=_is_gone(evidence)))
            # So that a sidecar that continues while the sink is down need not send these again.
            await self._save_cursor(page, lease)
            await self.clock.sleep(wait_s)
        return False

    async def _post(self, message_id: str, body: bytes) -> Evidence:
        headers = (
            (b"Content-Type", CONTENT_TYPE.encode()),
            (b"User-Agent", b"paywitness"),
            *sign(message_id, int(self.clock.now()), body, self.sink.secret),
        )
        request = WireRequest("POST", self.sink.target, headers, body)
        return await self.upstream.send(self.sink.origin, request, self.sink.timeouts)

    async def _save_cursor(self, page: _Page, lease: _CursorLease) -> None:
        """Move the cursor over the events that were delivered without a gap. If the journal does not answer, do it
        later."""
        async with self._save_lock:
            if page.unsaved == 0:
                return
            saved = page.unsaved
            lease.delivered_seq = max(lease.delivered_seq, page.delivered_seq)
            try:
                await self._move_cursor(lease)
            except JournalUnavailable:
                self.telemetry.emit(JournalUnanswered("the position of the sink; some events may be sent twice"))
            else:
                page.unsaved -= saved

    async def _move_cursor(self, lease: _CursorLease) -> bool:
        """Write the sink's position to the journal. False if this sidecar no longer holds the cursor."""
        delivered_seq = lease.delivered_seq
        if not await self.journal.move_cursor(CURSOR, delivered_seq, lease.token):
            if self._lease is lease:
                self._lose_cursor()
            return False
        lease.saved_seq = delivered_seq
        return True


def _is_gone(evidence: Evidence) -> bool:
    return evidence.response is not None and evidence.response.status_code == _GONE


def _why_not_taken(evidence: Evidence) -> str:
    response = evidence.response
    if response is None:
        return str(evidence.fault)
    if _is_gone(evidence):
        return (
            "status 410, it wants no more events, but events are never dropped: take the sink out of the settings, or "
            "bring it back"
        )
    return f"status {response.status_code}"
