"""The journal of one flow: the plans that every store runs, over dictionaries. Nothing is stored or sealed."""

from __future__ import annotations

from dataclasses import dataclass, field

from paywitness.core.claim import Alias, ClaimRequest, Tombstone
from paywitness.core.guard import indexed_guard, is_more_than_paid, is_paid
from paywitness.core.operation import Operation, Posting, State
from paywitness.core.payment import (
    Payment,
    payment_key,
)
from paywitness.journal.base import LedgerRow, OperationChange
from paywitness.journal.claim_answer import ClaimPlan
from paywitness.journal.claim_plan import plan_answer
from paywitness.journal.ledger import payment_by_id, payment_row
from paywitness.journal.transitions import (
    GUARDED_MAX,
    OperationWrite,
    needs_duplicate_check,
    needs_stored_lease,
    plan_record,
    stale_write,
)


@dataclass(slots=True)
class FlowJournal:
    """`ClaimLookups` and `RecordLookups`, and the two writes."""

    operations: dict[str, Operation] = field(default_factory=dict)  # by id, oldest first
    aliases: dict[str, Alias] = field(default_factory=dict)
    tombstones: dict[str, Tombstone] = field(default_factory=dict)  # always empty: a flow retires nothing
    rows: dict[str, LedgerRow] = field(default_factory=dict)
    postings: list[Posting] = field(default_factory=list)  # in the order of their announcement

    def claim(self, request: ClaimRequest, now: float) -> ClaimPlan:
        plan = plan_answer(request, now, self)
        for write in plan.updates:
            self._write(write)
        if plan.alias is not None:
            self.aliases[plan.alias.key] = plan.alias
        if plan.insert is not None:
            self._write(plan.insert)
        self._write_rows(plan.rows)
        return plan

    def record(self, change: OperationChange, now: float) -> Operation:
        stored = self.operations[change.operation.id]
        if stored.version != change.operation.version:
            raise stale_write(stored.id, change.operation.version)
        guard = change.operation.guard
        checked = guard is not None and needs_duplicate_check(change)
        paid = [found for found in self.guarded(guard.value) if is_paid(found)] if guard is not None and checked else []
        plan = plan_record(change, stored.lease if needs_stored_lease(change) else None, now, self, paid)
        self._write(plan.write)
        self._write_rows(plan.rows)
        return plan.write.operation

    def write_payment(self, payment: Payment) -> None:
        self._write_rows((payment_row(payment, self.row(payment_key(payment.id))),))

    def _write(self, write: OperationWrite) -> None:
        self.operations[write.operation.id] = write.operation
        announcement = write.entry.announcement
        if announcement is not None and announcement.posting is not None:
            self.postings.append(announcement.posting)

    def _write_rows(self, rows: tuple[LedgerRow, ...]) -> None:
        self.rows |= {row.key: row for row in rows}

    # --- Look-ups

    def newest(self, key: str) -> Operation | None:
        return max(
            (found for found in self.operations.values() if found.key == key),
            key=lambda found: found.generation,
            default=None,
        )

    def by_id(self, operation_id: str) -> Operation | None:
        return self.operations.get(operation_id)

    def disputed(self, key: str) -> Operation | None:
        return next(
            (found for found in self.operations.values() if found.key == key and found.incident is not None), None
        )

    def alias(self, key: str) -> Alias | None:
        return self.aliases.get(key)

    def tombstone(self, key: str) -> Tombstone | None:
        return self.tombstones.get(key)

    def row(self, key: str) -> LedgerRow | None:
        return self.rows.get(key)

    def accepted(self, account: str, credential: str) -> bool:
        made = [found for found in self.operations.values() if found.state is State.SUCCEEDED]
        return any((found.account, found.credential) == (account, credential) for found in made)

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        under = [found for found in self.operations.values() if indexed_guard(found) == guard]
        before = (found for found in under[:-GUARDED_MAX] if is_more_than_paid(found))
        return (*before, *under[-GUARDED_MAX:])

    def payment(self, payment_id: str) -> Payment | None:
        found = payment_by_id(self, payment_id) if payment_id else None
        return found.payment if found is not None else None
