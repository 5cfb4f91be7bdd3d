"""The leases that this process holds: the right to send, measured on a clock that counts suspension.

We count a lease from before the request for it, so that for us it always ends before it ends for the journal. One loop
renews all leases that are held. If a lease could not be renewed, it runs out, and an attempt that has not yet sent its
first byte is not sent.

A holder also keeps the operations that it holds. A journal that came back without its last writes may have lost one, or
have an older version: then this sidecar puts its own version back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paywitness.clock import Clock
from paywitness.core.errors import JournalUnavailable
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Operation
from paywitness.journal.base import Journal
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.events import IncidentOpened

_log = logging.getLogger("paywitness.leases")

_READ_BATCH = 100
_DISPUTED_MAX = 10_000
RENEWALS_PER_LEASE = 3  # 30 s renewed every 10 s: two renewals may fail
# Beyond that, an operation is put back without its request: it can be inquired about, but not re-sent.
STORED_REQUESTS_BYTES_MAX = 64 * 1024 * 1024


@dataclass(slots=True)
class HeldLease:
    token: str
    until_boot: float
    operation: Operation | None = None  # as this sidecar last wrote it
    sealed_request: bytes | None = None


# The sealed request and response of an operation, by its id.
MessagesOf = Callable[[str], tuple[bytes | None, bytes | None]]


def no_messages(operation_id: str) -> tuple[bytes | None, bytes | None]:
    return None, None


async def forgotten_by(journal: Journal, known: Sequence[Operation]) -> list[Operation]:
    """The operations of these that the journal has lost, or has in an older version."""
    forgotten: list[Operation] = []
    for first in range(0, len(known), _READ_BATCH):
        page = known[first : first + _READ_BATCH]
        found = await asyncio.gather(*(journal.read(operation.id) for operation in page))
        forgotten += [
            operation for operation, stored in zip(page, found, strict=True) if is_forgotten(stored, operation)
        ]
    return forgotten


def is_forgotten(found: Operation | None, known: Operation) -> bool:
    return found is None or found.version < known.version


class Leases:
    """The leases held here. Each claim or renewal requests `lease_s`."""

    def __init__(self, journal: Journal, clock: Clock, lease_s: float, telemetry: Telemetry | None = None) -> None:
        self._journal = journal
        self._clock = clock
        self._telemetry = telemetry
        self._held: dict[str, HeldLease] = {}
        self._requests_bytes = 0
        self._disputed: dict[str, None] = {}  # ids of operations that were restored with an incident, oldest first
        self.lease_s = lease_s
        self.messages_of: MessagesOf = no_messages  # gives recently written messages; set by the rollback monitor

    def hold(
        self,
        operation_id: str,
        token: str,
        requested_boot: float,
        operation: Operation | None = None,
        sealed_request: bytes | None = None,
    ) -> None:
        """Hold a lease, or extend it. `requested_boot` is read before the journal is asked for it. `operation` and
        `sealed_request` are the written values, for putting them back."""
        before = self._held.get(operation_id)
        if before is not None and before.token == token:
            before.until_boot = requested_boot + self.lease_s
            before.operation = operation or before.operation
            return
        if before is not None:
            self.release(operation_id)
        size = len(sealed_request or b"")
        if self._requests_bytes + size > STORED_REQUESTS_BYTES_MAX:
            sealed_request, size = None, 0
        self._requests_bytes += size
        self._held[operation_id] = HeldLease(token, requested_boot + self.lease_s, operation, sealed_request)

    def release(self, operation_id: str) -> None:
        held = self._held.pop(operation_id, None)
        if held is not None:
            self._requests_bytes -= len(held.sealed_request or b"")

    def outlasts(self, operation_id: str, token: str, seconds: float) -> bool:
        """Whether this holder's lease lasts longer than that."""
        held = self._held.get(operation_id)
        return held is not None and held.token == token and held.until_boot - self._clock.boot() > seconds

    def last_written(self, operation_id: str) -> Operation | None:
        """An operation that is held, as this sidecar last wrote it."""
        held = self._held.get(operation_id)
        return held.operation if held is not None else None

    def _note_dispute(self, operation_id: str) -> None:
        self._disputed[operation_id] = None
        if len(self._disputed) > _DISPUTED_MAX:
            del self._disputed[next(iter(self._disputed))]

    def is_disputed(self, operation_id: str) -> bool:
        """Whether the operation was restored with an incident that no write from here has kept so far."""
        return operation_id in self._disputed

    def take_dispute(self, operation_id: str) -> bool:
        """Whether the operation was restored with an incident since it was last written from here. True once: a write
        that was planned before does not know of the incident, and would remove it."""
        if operation_id not in self._disputed:
            return False
        del self._disputed[operation_id]
        return True

    async def renew(self) -> None:
        """Renew all leases that have not run out by our own clock."""
        requested_boot = self._clock.boot()
        tokens = {key: held.token for key, held in self._held.items() if held.until_boot > requested_boot}
        if not tokens:
            return
        renewed = await self._journal.renew(tuple(tokens), tokens, self.lease_s)
        for operation_id in renewed:
            held = self._held.get(operation_id)
            if held is not None and held.token == tokens[operation_id]:
                held.until_boot = requested_boot + self.lease_s
        await self._restore_many(tuple(operation_id for operation_id in tokens if operation_id not in renewed))

    async def keep_renewing(self) -> None:
        while True:
            await self._clock.sleep(self.lease_s / RENEWALS_PER_LEASE)
            try:
                await self.renew()
            except JournalUnavailable:
                continue  # the next round tries again; until then the leases run down, which is safe

    async def restore_forgotten(self) -> int:
        """Check all operations that are held, and put back those that the journal has lost or has older. Returns how
        many."""
        return await self._restore_many(tuple(self._held))

    async def _restore_many(self, operation_ids: tuple[str, ...]) -> int:
        known = [held.operation for operation_id in operation_ids if (held := self._held.get(operation_id)) is not None]
        forgotten = await forgotten_by(self._journal, [operation for operation in known if operation is not None])
        for operation in forgotten:
            await self.restore(operation)
        return len(forgotten)

    async def restore(
        self, operation: Operation, sealed_request: bytes | None = None, sealed_response: bytes | None = None
    ) -> Operation:
        """Write the operation again as this sidecar knows it, and return the result. If others continued without it, we
        do not send for it any more."""
        requested_boot = self._clock.boot()
        if operation.undelivered:  # the journal may also have forgotten that another sidecar delivered its reply
            operation = operation.changed(delivery_unknown=True)
        held = self._held.get(operation.id)
        if held is not None:
            sealed_request = held.sealed_request or sealed_request
        if sealed_request is None and not operation.state.ended:
            # Its present holder may not be the sidecar that sent it, and without the request no sidecar could inquire
            # about it.
            sealed_request, _ = self.messages_of(operation.id)
        token = operation.lease.token if operation.lease is not None else None
        is_ours = held is not None and held.token == token and held.until_boot > requested_boot
        lease_s = self.lease_s if is_ours else None
        restored = await self._journal.restore(operation, sealed_request, sealed_response, lease_s=lease_s)
        _log.error("the journal had forgotten %s: it was put back as this sidecar knows it", operation.id)
        if restored.incident == IncidentKind.JOURNAL_ROLLBACK:
            self.release(operation.id)
            if operation.incident is None:
                self._note_dispute(operation.id)
            if operation.incident is None and self._telemetry is not None:
                self._telemetry.emit(IncidentOpened(restored, IncidentKind.JOURNAL_ROLLBACK))
        elif is_ours and held is not None and restored.lease is not None and restored.lease.token == token:
            held.until_boot, held.operation = (
                requested_boot + self.lease_s,
                restored,
            )  # no harm if it was released meanwhile
        return restored
