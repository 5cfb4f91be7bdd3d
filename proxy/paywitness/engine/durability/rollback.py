"""A journal that came back without its last writes: this process detects it, reports it, and restores what it knows.

A failover to a replica, or a start from the disk, may lose writes that were acknowledged a moment before. This sidecar
remembers its own writes of the last lease, and puts them back if the journal lost them. Until that is done, it starts
no operation. For the length of one lease, other sidecars may still be doing the same. During that time no operation
starts that the provider would execute twice.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from paywitness.clock import Clock, JournalClock
from paywitness.core.errors import JournalUnavailable
from paywitness.core.operation import Operation
from paywitness.core.record import record
from paywitness.engine.durability.leases import Leases, forgotten_by
from paywitness.journal.base import Journal
from paywitness.policy.book import PolicyBook
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import JournalRolledBack, JournalUnanswered

_log = logging.getLogger("paywitness.rollback")

_CHECK_EVERY_S = 1.0
_REMEMBERED_MAX = 5_000  # operations, some 4 kB each
_REMEMBERED_BYTES_MAX = 32 * 1024 * 1024  # of sealed requests and responses
_DETAIL = (
    "the store came back as another one, lost its keys or its log, or was put back from an older copy: it may have "
    "forgotten writes that it had confirmed"
)


@record
class _RecentWrite:
    """An operation as this sidecar last wrote it."""

    operation: Operation
    request: bytes | None
    response: bytes | None
    at_boot: float

    @property
    def size(self) -> int:
        return len(self.request or b"") + len(self.response or b"")


class RollbackMonitor:
    """Watches a journal that may roll back. SQLite cannot, and needs none of this."""

    def __init__(
        self,
        journal: Journal,
        leases: Leases,
        clock: Clock,
        telemetry: Telemetry,
        journal_clock: JournalClock | None = None,
        policies: Callable[[], PolicyBook] | None = None,
    ) -> None:
        self._journal = journal
        self._leases = leases
        leases.messages_of = self.messages_of
        self._clock = clock
        self._telemetry = telemetry
        self._journal_clock = journal_clock or JournalClock(clock)
        self._recent_writes: OrderedDict[str, _RecentWrite] = OrderedDict()
        self._recent_bytes = 0
        self._reported_boot: float | None = None  # when the rollback happened that was reported last
        since_s = journal.rolled_back_s()
        if since_s is not None and since_s >= leases.lease_s:
            self._reported_boot = clock.boot() - since_s  # a rollback of long ago is not reported at a start
        self._repaired = True
        self._policies = policies  # the book in force

    def recently_rolled_back(self) -> bool:
        """Whether an operation that the provider does not dedupe must wait: for one lease after a rollback."""
        since_s = self._journal.rolled_back_s()
        return since_s is not None and since_s < self._leases.lease_s

    def must_put_back(self) -> bool:
        """Whether this process has not put its writes back yet. Until then a paid order has no guard, so that a fresh
        key would pay it again, even at a provider that dedupes."""
        return not self._repaired or self._new_rollback_boot() is not None

    def end_may_be_lost(self, operation: Operation) -> bool:
        """Whether the journal may have forgotten the operation's end, which its caller may have seen: it was sent
        before the rollback, or so soon after it that the clocks of two stores cannot tell."""
        since_s, sent_at = self._journal.rolled_back_s(), operation.first_sent_at
        if since_s is None or sent_at is None:
            return False
        return self._journal_clock.now() - sent_at > since_s - self._leases.lease_s

    def remember(
        self, operation: Operation, *, sealed_request: bytes | None = None, sealed_response: bytes | None = None
    ) -> None:
        """Remember an operation that the journal has confirmed, for one lease, as far as there is room."""
        before = self._forget(operation.id)
        if before is not None:
            sealed_request, sealed_response = sealed_request or before.request, sealed_response or before.response
        request = None if operation.state.ended else sealed_request
        now_boot = self._clock.boot()
        recent_write = _RecentWrite(operation, request, sealed_response, now_boot)
        self._recent_writes[operation.id] = recent_write
        self._recent_bytes += recent_write.size
        while self._recent_writes and (
            len(self._recent_writes) > _REMEMBERED_MAX
            or self._recent_bytes > _REMEMBERED_BYTES_MAX
            or now_boot - next(iter(self._recent_writes.values())).at_boot > self._leases.lease_s
        ):
            self._forget(next(iter(self._recent_writes)))

    def messages_of(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        """The sealed request and response of an operation, if they are remembered."""
        known = self._recent_writes.get(operation_id)
        return (known.request, known.response) if known is not None else (None, None)

    @property
    def remembered(self) -> int:
        return len(self._recent_writes)

    def _forget(self, operation_id: str) -> _RecentWrite | None:
        recent_write = self._recent_writes.pop(operation_id, None)
        self._recent_bytes -= recent_write.size if recent_write is not None else 0
        return recent_write

    async def keep_watching(self) -> None:
        """Check for ever. It makes no call: every write to the journal shows whether the journal has rolled back."""
        while True:
            try:
                await self.check()
            except JournalUnavailable:
                self._telemetry.emit(JournalUnanswered("putting back forgotten operations"))
            await self._clock.sleep(_CHECK_EVERY_S)

    async def check(self) -> int:
        """If the journal has rolled back, report it once, and put back what it forgot of ours. Returns how many
        operations."""
        at_boot = self._new_rollback_boot()
        if at_boot is not None:
            self._reported_boot = at_boot
            self._telemetry.emit(JournalRolledBack(_DETAIL))
            self._repaired = False
        if self._repaired:
            return 0
        await self._store_revisions()
        restored = await self._leases.restore_forgotten() + await self._restore_forgotten()
        self._repaired = True
        if restored:
            _log.error("the journal had forgotten %d operation(s) of this sidecar: they were put back", restored)
        return restored

    def _new_rollback_boot(self) -> float | None:
        """When the journal rolled back, if that has not been reported yet."""
        since_s = self._journal.rolled_back_s()
        if since_s is None:
            return None
        at_boot = self._clock.boot() - since_s
        is_new = self._reported_boot is None or at_boot - self._reported_boot > _CHECK_EVERY_S
        return at_boot if is_new else None

    async def _store_revisions(self) -> None:
        """Store the revisions in force again, because one may be from the lost second: operations are still pinned to
        it, and other sidecars must be able to read it."""
        for provider in self._policies().providers.values() if self._policies is not None else ():
            if await self._journal.revision(provider.name, provider.revision) is None:
                await self._journal.keep_revision(provider.name, provider.revision, provider.content)

    async def _restore_forgotten(self) -> int:
        forgotten = await forgotten_by(
            self._journal, [recent_write.operation for recent_write in self._recent_writes.values()]
        )
        for operation in forgotten:
            recent_write = self._recent_writes.get(operation.id)
            # Otherwise it was written again meanwhile.
            if recent_write is not None and recent_write.operation is operation:
                await self._leases.restore(operation, recent_write.request, recent_write.response)
        return len(forgotten)
