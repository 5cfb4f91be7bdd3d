"""What a journal in memory holds, and how it is looked up: the dictionaries that a file's tables would be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from paywitness.core.claim import Alias, AliasKind, Tombstone
from paywitness.core.guard import indexed_guard, is_more_than_paid
from paywitness.core.levels import LEVEL, JournalLevel
from paywitness.core.operation import HistoryEntry, Operation
from paywitness.journal import transitions
from paywitness.journal.base import LedgerRow, PolicyRevision, StoredWebhookEvent, WebhookEventResult
from paywitness.journal.ledger import followed, may_forget
from paywitness.journal.tombstones import keys_kept_of, may_retire, retired_together, row_kept_of, tombstones_of


@dataclass(slots=True)
class MemoryTables:
    """All that a restart leaves behind. A `claiming.ClaimLookups`."""

    operations: dict[str, Operation] = field(default_factory=dict)  # in the order they started
    generations: dict[str, list[str]] = field(default_factory=dict)  # ids under each key, oldest first
    kept_by_guard: dict[str, set[str]] = field(default_factory=dict)
    requests: dict[str, bytes] = field(default_factory=dict)
    responses: dict[str, bytes] = field(default_factory=dict)
    changes: dict[int, tuple[str, HistoryEntry]] = field(default_factory=dict)  # by seq
    seqs_of: dict[str, list[int]] = field(default_factory=dict)  # of each operation's changes
    seq: int = 0
    numbers: dict[str, int] = field(default_factory=dict)  # of each operation, in the order they started
    number: int = 0
    aliases: dict[str, Alias] = field(default_factory=dict)
    tombstones: dict[str, tuple[Tombstone, float]] = field(default_factory=dict)  # and when it was made
    notices: dict[int, StoredWebhookEvent] = field(default_factory=dict)
    notice_number: int = 0
    cursors: dict[str, int] = field(default_factory=dict)
    revisions: dict[tuple[str, str], PolicyRevision] = field(default_factory=dict)  # in the order they were kept
    credentials: dict[tuple[str, str], transitions.AcceptedCredential] = field(default_factory=dict)
    sealed_credentials: dict[tuple[str, str], bytes] = field(default_factory=dict)
    ledger: dict[str, tuple[LedgerRow, float]] = field(default_factory=dict)  # and when it was written
    identity: str | None = None
    latest_at: float = 0.0
    level: JournalLevel = JournalLevel(LEVEL, 0.0)

    # What a claim looks up.

    def newest(self, key: str) -> Operation | None:
        ids = self.generations.get(key)
        return self.operations[ids[-1]] if ids else None

    def by_id(self, operation_id: str) -> Operation | None:
        return self.operations.get(operation_id)

    def disputed(self, key: str) -> Operation | None:
        newest_first = (self.operations[operation_id] for operation_id in reversed(self.generations.get(key, [])))
        return next((operation for operation in newest_first if operation.incident is not None), None)

    def alias(self, key: str) -> Alias | None:
        return self.aliases.get(key)

    def tombstone(self, key: str) -> Tombstone | None:
        tombstone, _ = self.tombstones.get(key, (None, 0.0))
        return tombstone

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        kept = self.kept_by_guard.get(guard)
        if kept is None:
            return ()
        ids = sorted(kept, key=self.numbers.__getitem__) if len(kept) > 1 else list(kept)
        found = [self.operations[operation_id] for operation_id in ids]
        newest, before = found[-transitions.GUARDED_MAX :], found[: -transitions.GUARDED_MAX]
        return (*(operation for operation in before if is_more_than_paid(operation)), *newest)

    def row(self, key: str) -> LedgerRow | None:
        found = self.ledger.get(key)
        return None if found is None else found[0]

    def accepted(self, account: str, credential: str) -> bool:
        return (account, credential) in self.credentials

    def row_or_linked(self, key: str) -> LedgerRow | None:
        return followed(self.row(key), self.row)

    def store_rows(self, rows: Iterable[LedgerRow], now: float) -> None:
        for row in rows:
            stored = self.row(row.key)
            assert row.version == (1 if stored is None else stored.version + 1)
            self.ledger[row.key] = (row, now)

    def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        return self.requests.get(operation_id), self.responses.get(operation_id)

    # What is written.

    def start(self, write: transitions.OperationWrite, sealed_request: bytes | None) -> None:
        operation = write.operation
        self.number += 1
        self.numbers[operation.id] = self.number
        self.generations.setdefault(operation.key, []).append(operation.id)
        if sealed_request is not None:
            self.requests[operation.id] = sealed_request
        self.write(write)

    def write(self, write: transitions.OperationWrite) -> None:
        operation = write.operation
        before = self.operations.get(operation.id)
        self._keep_guard(operation.id, None if before is None else indexed_guard(before), indexed_guard(operation))
        self.operations[operation.id] = operation
        if write.erase_request:
            self.requests.pop(operation.id, None)
        self.seq += 1
        self.changes[self.seq] = (operation.id, write.entry)
        self.seqs_of.setdefault(operation.id, []).append(self.seq)

    def _keep_guard(self, operation_id: str, before: str | None, after: str | None) -> None:
        if before == after:
            return
        if before is not None:
            self.kept_by_guard[before].discard(operation_id)
            if not self.kept_by_guard[before]:
                del self.kept_by_guard[before]
        if after is not None:
            self.kept_by_guard.setdefault(after, set()).add(operation_id)

    def accept(self, pair: tuple[str, str], sealed: bytes | None, now: float) -> None:
        accepted = transitions.refreshed_acceptance(self.credentials.get(pair), sealed, now)
        if accepted is not None:
            self.credentials[pair] = accepted
            if sealed is not None:
                self.sealed_credentials[pair] = sealed

    # What is retired.

    def retire(self, ended_before: float, limit: int, now: float) -> int:
        """Leave tombstones in the place of operations that ended before, oldest first; how many operations went."""
        read_to = min(self.cursors.values(), default=self.seq)

        def may_go(operation: Operation) -> bool:
            return may_retire(operation, ended_before) and self.seqs_of[operation.id][-1] <= read_to

        retired = 0
        for operation in list(self.operations.values()):
            if retired >= limit:
                break
            if operation.id not in self.operations:
                continue  # it went with what it stood for
            if not may_go(operation) or operation.fallback_to in self.operations:
                continue
            group = retired_together(operation, self.by_id, may_go)
            for buried in group:
                self._replace_by_tombstones(buried, operation, now)
            retired += len(group)
        return retired

    def _replace_by_tombstones(self, operation: Operation, last: Operation, now: float) -> None:
        self.store_rows([row_kept_of(operation, key, self.row(key)) for key in keys_kept_of(operation)], now)
        aliases = [alias for alias in self.aliases.values() if alias.operation_id == operation.id]
        for tombstone in tombstones_of(operation, aliases, last):
            earlier = self.tombstone(tombstone.key)
            if earlier is None or earlier.ended_at <= tombstone.ended_at:
                self.tombstones[tombstone.key] = (tombstone, now)
        for alias in aliases:
            del self.aliases[alias.key]
        self._forget(operation)

    def _forget(self, operation: Operation) -> None:
        self._keep_guard(operation.id, indexed_guard(operation), None)
        self.generations[operation.key].remove(operation.id)
        if not self.generations[operation.key]:
            del self.generations[operation.key]
        for seq in self.seqs_of.pop(operation.id):
            del self.changes[seq]
        del self.operations[operation.id], self.numbers[operation.id]
        self.requests.pop(operation.id, None)
        self.responses.pop(operation.id, None)

    def forget_old(self, *, buried_before: float, received_before: float, limit: int) -> int:
        """Forget tombstones, refused keys and done notices that are older, at most `limit` of each; how many."""
        old = sorted((at, key) for key, (_, at) in self.tombstones.items() if at <= buried_before)[:limit]
        for _, key in old:
            del self.tombstones[key]
        refused = [
            alias for alias in self.aliases.values() if alias.kind is AliasKind.REFUSED and alias.at <= received_before
        ]
        for alias in refused[:limit]:
            del self.aliases[alias.key]
        done = sorted(
            (notice.received_at, notice.number)
            for notice in self.notices.values()
            if notice.result is not WebhookEventResult.WAITING
            and notice.relay_due_at is None
            and notice.received_at <= received_before
        )[:limit]
        for _, number in done:
            del self.notices[number]
        return len(old) + len(refused[:limit]) + len(done)

    def forget_credentials(self, accepted_before: float, oldest_at: float, limit: int) -> int:
        """Forget acceptances that are older; the newest of an account that is sealed only if it is older than the
        oldest."""
        newest: dict[str, float] = {}
        for account, credential in self.sealed_credentials:
            newest[account] = max(newest.get(account, 0.0), self.credentials[account, credential].at)
        old = [
            pair
            for pair, accepted in self.credentials.items()
            if accepted.at <= oldest_at
            or (accepted.at <= accepted_before and accepted.at < newest.get(pair[0], float("inf")))
        ]
        gone = sorted(old)[:limit]
        for pair in gone:
            del self.credentials[pair]
            self.sealed_credentials.pop(pair, None)
        return len(gone)

    def forget_ledger_rows(self, touched_before: float, limit: int, now: float) -> int:
        old = sorted((at, key) for key, (_, at) in self.ledger.items() if at <= touched_before)[:limit]
        forgotten = 0
        for _, key in old:
            row = self.ledger[key][0]
            if may_forget(row, self.row(row.text[1:]) if row.text.startswith("@") else None):
                del self.ledger[key]
                forgotten += 1
            else:
                self.ledger[key] = (row, now)
        return forgotten
