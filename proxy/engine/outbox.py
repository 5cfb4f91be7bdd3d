"""The outbox: what changes tell, delivered to one HTTP sink as signed CloudEvents. At least once, never dropped.

A change and what it tells are one write, so nothing is lost between the two; here it is only read and sent. How far the
sink has come is a cursor in the journal, moved over what was taken without a gap: after a crash the rest is sent again
under the same ids. Events of one operation go strictly one after the other; those of different operations side by side.
A sink that is down holds up one page, which is all that is kept in memory.

Of a fleet one delivers at a time: whoever holds the cursor. It is held for a while and held on to; when its holder is
gone the next one goes on from the cursor. Whoever lost it offers nothing any more, and cannot move it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
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
from proxy.tasks import Tasks
from proxy.telemetry.lines import place_of
from proxy.telemetry.records import OutboxDelivered
from proxy.telemetry.telemetry import Telemetry
from proxy.upstream.client import UpstreamClient
from proxy.upstream.target import ANYWHERE, Origin, Timeouts, WireRequest

_log = logging.getLogger("paywitness.outbox")

CURSOR = "sink"
PAGE = 200  # a page of events is half a megabyte at most
LANES = 8  # operations delivered side by side
_IDLE_S = 0.3  # between two looks for something to tell
_CURSOR_EVERY = 25  # events between two moves of the cursor: what is sent twice after a crash
_GONE = 410
LEASE_S = 15.0  # after a deliverer's death nothing is told for so long, and until the next one looks
LOOKS_PER_LEASE = 3  # two renewals may fail; and how often those who do not hold the cursor ask for it


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
        return Origin.parse(f"{parts.scheme}://{parts.netloc}", ANYWHERE)

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
class _Hold:
    """The right to deliver, and how far the sink has come under it."""

    token: str
    until_boot: float  # by our own clock, from before it was asked for: it ends before the journal's
    come_to: int
    noted: int  # by the journal, which may not have answered


@dataclass(slots=True)
class Outbox:
    journal: Journal
    upstream: UpstreamClient
    sink: Sink
    clock: Clock
    chance: Chance
    telemetry: Telemetry
    lease_s: float = LEASE_S
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: Tasks = field(default_factory=Tasks)
    _token: str = ""
    _held: _Hold | None = None

    async def keep_delivering(self) -> None:
        """Deliver for ever, whenever it is ours to do. A journal that does not answer is asked again."""
        try:
            while True:
                await self.clock.sleep(await self._turn())
        finally:
            await self._give_back()

    async def _turn(self) -> float:
        """Deliver a page, where it is ours to do; how long to wait for the next."""
        try:
            delivered = await self.deliver_page()
        except JournalUnavailable:
            _log.warning("the journal did not answer; what waits for the sink waits on")
            return _IDLE_S
        except Exception as error:  # noqa: BLE001  # a fault of ours must not end the telling for ever
            _log.error("delivering failed by %s at %s; it is tried again", type(error).__name__, place_of(error))
            return self.sink.backoff.cap_s
        if delivered is None:
            return self.lease_s / LOOKS_PER_LEASE
        return _IDLE_S if delivered == 0 else 0.0

    async def deliver_page(self) -> int | None:
        """Deliver what waits, at most a page, and return when all of it was taken: how many. None where it is not ours
        to deliver, or is not any more."""
        hold = await self._hold()
        if hold is None:
            return None
        if hold.noted < hold.come_to and not await self._note(hold):
            return None
        rows = await self.journal.outcomes(hold.come_to, limit=PAGE)
        if not rows:
            return 0
        page = _Page(rows)
        delivering = self._tasks.start(self._deliver_all(rows, page, hold), "outbox-page")
        try:
            while not delivering.done():
                await asyncio.wait({delivering}, timeout=self.lease_s / LOOKS_PER_LEASE)
                if not delivering.done() and not await self._holds_on(hold):
                    return None
        finally:
            delivering.cancel()
            await asyncio.wait({delivering})  # nothing is offered any more when the cursor is another's
        await delivering
        await self._save(page, hold)
        return len(rows) if self._is_ours(hold) else None

    # Whose it is to deliver.

    async def _hold(self) -> _Hold | None:
        """Hold the cursor, or hold on to it; None where another one does."""
        asked_boot = self.clock.boot()
        hold = self._held
        if hold is not None and hold.until_boot <= asked_boot:
            self._lose()
            hold = None
        if hold is not None and hold.until_boot - asked_boot > self.lease_s * (1 - 1 / LOOKS_PER_LEASE):
            return hold
        self._token = self._token or self.chance.token()  # a reply that was lost is asked for again
        come_to = await self.journal.take_cursor(CURSOR, self._token, self.lease_s)
        if come_to is None:
            self._lose()
            return None
        if hold is None:
            _log.info("events are delivered from here now, after %d", come_to)
            hold = _Hold(self._token, 0.0, come_to, come_to)
        hold.until_boot = asked_boot + self.lease_s
        self._held = hold
        return hold

    def _lose(self) -> None:
        """A token holds once. What the sink took under it and the journal does not know comes again."""
        if self._held is not None:
            _log.warning("the right to deliver events has run out; it is asked for anew")
            self.telemetry.tell(OutboxDelivered(0, failed=False, lag=0))
        self._held, self._token = None, ""

    def _is_ours(self, hold: _Hold) -> bool:
        return self._held is hold and hold.until_boot > self.clock.boot()

    async def _holds_on(self, hold: _Hold) -> bool:
        """Whether it is ours after having been asked for again. A silent journal leaves us what we had."""
        try:
            await self._hold()
        except JournalUnavailable:
            _log.warning("the journal did not answer; events are delivered for as long as the right to it lasts")
        return self._is_ours(hold)

    async def _give_back(self) -> None:
        """Let the next one deliver at once."""
        if self._held is not None:
            with suppress(JournalUnavailable):
                await self.journal.take_cursor(CURSOR, self._held.token, 0.0)

    # The delivering.

    async def _deliver_all(self, rows: Sequence[OutcomeRow], page: _Page, hold: _Hold) -> None:
        by_operation: dict[str, list[OutcomeRow]] = {}
        for row in rows:
            by_operation.setdefault(row.operation.id, []).append(row)
        queue = deque(by_operation.values())
        lanes = (self._lane(queue, page, hold) for _ in range(min(LANES, len(queue))))
        for ending in await asyncio.gather(*lanes, return_exceptions=True):
            if ending is not None:
                raise ending

    async def _lane(self, queue: deque[list[OutcomeRow]], page: _Page, hold: _Hold) -> None:
        while queue:
            for row in queue.popleft():
                if not await self._deliver(row, page, hold):
                    return
                page.took(row.seq)
                self.telemetry.tell(OutboxDelivered(1, failed=False, lag=len(page)))
                if page.unsaved >= _CURSOR_EVERY:
                    await self._save(page, hold)

    async def _deliver(self, row: OutcomeRow, page: _Page, hold: _Hold) -> bool:
        """Offer one event until it is taken; False where it is not ours any more."""
        if row.entry.told is None:
            return True
        body = event_bytes(cloud_event(row.operation, row.entry))
        tries = 0
        while self._is_ours(hold):
            evidence = await self._offer(event_id(row.operation, row.entry), body)
            response = evidence.response
            if response is not None and 200 <= response.status_code < 300:
                return True
            tries += 1
            wait_s = delay_s(self.sink.backoff, tries, self.chance.draw())
            self._say_not_taken(row, evidence, tries, wait_s)
            self.telemetry.tell(OutboxDelivered(1, failed=True, lag=len(page)))
            await self._save(page, hold)  # who goes on while the sink is down need not repeat what was taken
            await self.clock.sleep(wait_s)
        return False

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

    async def _save(self, page: _Page, hold: _Hold) -> None:
        """Move the cursor over what was taken without a gap. A journal that does not answer is told later."""
        async with self._saving:
            if page.unsaved == 0:
                return
            saved = page.unsaved
            hold.come_to = max(hold.come_to, page.seq)
            try:
                await self._note(hold)
            except JournalUnavailable:
                _log.warning("the journal did not take how far the sink has come; the end of it may be sent twice")
            else:
                page.unsaved -= saved

    async def _note(self, hold: _Hold) -> bool:
        """Tell the journal how far the sink has come; False where that is not ours to say any more."""
        come_to = hold.come_to
        if not await self.journal.move_cursor(CURSOR, come_to, hold.token):
            if self._held is hold:
                self._lose()
            return False
        hold.noted = come_to
        return True
