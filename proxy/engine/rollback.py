"""A journal that came back without its last writes: noticed, told, and mended from what this process knows.

A failover to a replica, or a start from the disk, may forget what was acknowledged a moment before. What was written
from here within the last lease is kept in mind, and put back where the journal lost it. Until one lease has passed,
others may still be doing the same: so long, what a provider would execute twice is not started.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from proxy.clock import Clock
from proxy.core.errors import JournalUnavailable
from proxy.core.frozen import frozen
from proxy.core.operation import Operation
from proxy.engine.heard_time import HeardTime
from proxy.engine.leases import Leases, forgotten_by
from proxy.journal.base import Journal
from proxy.policy.book import PolicyBook
from proxy.telemetry.records import JournalRolledBack
from proxy.telemetry.telemetry import Telemetry

_log = logging.getLogger("paywitness.rollback")

_LOOK_EVERY_S = 1.0
_KEPT_MAX = 5_000  # operations, some 4 kB each
_KEPT_BYTES_MAX = 32 * 1024 * 1024  # of sealed requests and responses
_DETAIL = (
    "the store came back as another one, or started again: it may have forgotten what it had confirmed just before"
)


@frozen
class _Written:
    """An operation as it was last written from here."""

    operation: Operation
    request: bytes | None
    response: bytes | None
    at_boot: float

    @property
    def size(self) -> int:
        return len(self.request or b"") + len(self.response or b"")


class Rollback:
    """Watches a journal that may roll back; SQLite cannot, and needs none of this."""

    def __init__(
        self, journal: Journal, leases: Leases, clock: Clock, telemetry: Telemetry, time: HeardTime | None = None
    ) -> None:
        self._journal = journal
        self._leases = leases
        self._clock = clock
        self._telemetry = telemetry
        self._time = time or HeardTime(clock)
        self._written: OrderedDict[str, _Written] = OrderedDict()
        self._written_bytes = 0
        self._told_boot: float | None = None  # when the rollback happened that was last told
        since_s = journal.rolled_back_s()
        if since_s is not None and since_s >= leases.lease_s:
            self._told_boot = clock.boot() - since_s  # of long ago: at a start nobody's news
        self._mended = True
        self.book: Callable[[], PolicyBook] | None = None  # in force; set where the engine is put together

    def cautious(self) -> bool:
        """Whether what the provider does not dedupe must wait: for one lease after a rollback."""
        since_s = self._journal.rolled_back_s()
        return since_s is not None and since_s < self._leases.lease_s

    def may_have_ended(self, operation: Operation) -> bool:
        """Whether its end, as its caller was told it, may be among what was forgotten: it was sent before the rollback,
        or so soon after it that two stores' clocks do not tell."""
        since_s, sent_at = self._journal.rolled_back_s(), operation.first_sent_at
        if since_s is None or sent_at is None:
            return False
        return self._time.now() - sent_at > since_s - self._leases.lease_s

    def remember(
        self, operation: Operation, *, sealed_request: bytes | None = None, sealed_response: bytes | None = None
    ) -> None:
        """The journal has confirmed this. It is kept in mind for a lease, as far as there is room."""
        before = self._forget(operation.id)
        if before is not None:
            sealed_request, sealed_response = sealed_request or before.request, sealed_response or before.response
        request = None if operation.state.ended else sealed_request
        now_boot = self._clock.boot()
        written = _Written(operation, request, sealed_response, now_boot)
        self._written[operation.id] = written
        self._written_bytes += written.size
        while self._written and (
            len(self._written) > _KEPT_MAX
            or self._written_bytes > _KEPT_BYTES_MAX
            or now_boot - next(iter(self._written.values())).at_boot > self._leases.lease_s
        ):
            self._forget(next(iter(self._written)))

    @property
    def kept(self) -> int:
        return len(self._written)

    @property
    def kept_bytes(self) -> int:
        """Of sealed requests and responses."""
        return self._written_bytes

    def _forget(self, operation_id: str) -> _Written | None:
        written = self._written.pop(operation_id, None)
        self._written_bytes -= written.size if written is not None else 0
        return written

    async def keep_watching(self) -> None:
        """Notice for ever. It asks nothing: whoever writes to the journal hears what it says of itself."""
        while True:
            try:
                await self.look()
            except JournalUnavailable:
                _log.warning("the journal does not answer; what it may have forgotten is put back later")
            await self._clock.sleep(_LOOK_EVERY_S)

    async def look(self) -> int:
        """Where the journal has rolled back, tell it once, and put back what it forgot of ours. How much that was."""
        since_s = self._journal.rolled_back_s()
        if since_s is None:
            return 0
        at_boot = self._clock.boot() - since_s
        if self._told_boot is None or at_boot - self._told_boot > _LOOK_EVERY_S:
            self._told_boot = at_boot
            self._telemetry.tell(JournalRolledBack(_DETAIL))
            self._mended = False
        if self._mended:
            return 0
        await self._keep_revisions()
        again = await self._leases.put_back_forgotten() + await self._put_back()
        self._mended = True
        if again:
            _log.error("the journal had forgotten %d operation(s) of this sidecar: they were put back", again)
        return again

    async def _keep_revisions(self) -> None:
        """An edit put in force in the forgotten second: operations go on being pinned to it, and others must be
        able to read it."""
        for provider in self.book().providers.values() if self.book is not None else ():
            if await self._journal.revision(provider.name, provider.revision) is None:
                await self._journal.keep_revision(provider.name, provider.revision, provider.content)

    async def _put_back(self) -> int:
        forgotten = await forgotten_by(self._journal, [written.operation for written in self._written.values()])
        for operation in forgotten:
            written = self._written.get(operation.id)
            if written is not None and written.operation is operation:  # else it was written again meanwhile
                await self._leases.put_back(operation, written.request, written.response)
        return len(forgotten)
