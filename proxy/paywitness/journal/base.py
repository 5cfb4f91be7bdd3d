"""The journal's interface: the promises that every store keeps, whatever it is made of.

- A method returns when its write is durable. If it raises JournalUnavailable, the write may or may not have happened.
- `claim` and `record` are each one atomic step: no other write comes between their reads and their writes.
- Every time that a store returns is the journal's own, which never goes back.
- Every claimed operation receives records until it is ended, or in doubt with no holder, or until its lease expires.
- Ciphertexts are opaque here: the engine seals requests and responses before it hands them over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Protocol

from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.fallback import FallbackChoice
from paywitness.core.levels import JournalLevel
from paywitness.core.money import Money
from paywitness.core.operation import Announcement, AttemptSummary, DoubtCount, Finding, HistoryEntry, Operation, State
from paywitness.core.payment import ShownBalance
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.option_defaults import DEFAULTS

AGES_KEY = "c:ages"  # the ledger row that keeps `core.ages.AgeTable`
FLEET_KEY = "c:fleet"  # the ledger row that keeps `core.levels.Fleet`
OWN_ROWS = frozenset({AGES_KEY, FLEET_KEY})  # rows of the journal itself, which are never forgotten
PAYMENTS_KEPT_S = DEFAULTS.payments_kept_s  # unless the caller of `retire` passes another time

DUE_ROWS_COUNTED_MAX = 10_000  # rows that a count reads at most: some milliseconds of a Redis


@record
class OperationChange:
    """One step of an operation, to be written whole or not at all.

    `operation` has the values that it shall have after the write. Its `version` is still the one that was read, and the
    write succeeds only over that version (else StaleWrite). Its lease is kept as given: None gives it back. The fields
    that identify it, its money, its guard and its first destination were written with the claim, and stay. A change
    writes only its state.
    """

    operation: Operation
    events: tuple[str, ...]
    source: str = "caller"
    attempt: AttemptSummary | None = None
    action: str = ""
    because: str = ""
    delay_s: float | None = None
    note: str = ""
    lease_s: float | None = None  # set: the lease runs anew from now for this long, under the operation's own token
    sealed_response: bytes | None = None  # kept for replay; None keeps the stored response
    erase_request: bool = False  # the stored request is no longer needed
    accepted_credential: bool = False  # the provider accepted operation.credential for operation.account
    sealed_credential: bytes | None = None  # that credential, kept for background calls of the account
    finding: Finding | None = None
    announcement: Announcement | None = None  # the event for subscribers; written with the change, so never lost
    actor: str = ""
    fallback: FallbackChoice | None = None  # the fallback routes that the operation had, and the verdict on each
    shown: ShownBalance | None = None  # set: the change also updates the operation's payment with this balance
    numbers_forgotten: bool = False  # the journal may have forgotten movements of the payment a moment ago
    spent_change: int = 0  # for a payout: by how many minor units the change moves the counts of its caps


@record
class LedgerRow:
    """One row of the ledger. The ledger is kept beside operations, and longer: payments, their names, payout
    references, caps, approvals.

    A text that begins with `@` is a link: the key of another row follows. A row is written only over the version before
    its own."""

    key: str
    version: int
    text: str
    due_at: float | None = None  # when the worker of this kind of row should act on it


@record
class NextDue:
    """When the first of each kind is due, in the journal's time, however far ahead. Infinity: there is none."""

    operations: Mapping[str, float] = field(default_factory=dict)  # by provider; only operations without a lease
    lease: float = math.inf  # when the first lease ends
    webhook_event: float = math.inf
    ledger_row: float = math.inf
    announced_seq: int = 0  # the highest seq of a change with an announcement


@record
class StoreClock:
    """One reading of the store's clocks, with the row of ages and the next due times, all read in one step."""

    at: float  # the journal's time, which never goes back
    raw_at: float  # the store's own clock, which may go back
    ages: LedgerRow | None
    next_due: NextDue = field(default_factory=NextDue)


@record
class OperationQuery:
    """Which operations to list: newest first, at most `limit`, older than `before` (an operation id) when given."""

    provider: str | None = None
    operation: str | None = None
    states: frozenset[State] = frozenset()
    key: str | None = None  # client_key or provider_key; also a key that got its reply, or was refused because of it
    reference: str | None = None
    stamp: str | None = None  # our id in the provider's object: the operation's id, or its `stamp` if that differs
    guard: str | None = None  # a guard's value: operations that still hold it (`core.guard.indexed_guard`)
    subject: str | None = None  # an intent or target in the clear: an order's number
    money: Money | None = None
    payment: str | None = None  # the id of a payment: its steps and follow-ups
    accounts: frozenset[str] = frozenset()  # ids; empty: any
    kind: OperationKind | None = None
    incidents_only: bool = False
    limit: int = 50
    before: str | None = None


@record
class PolicyRevision:
    """A policy revision in use: its provider, its content hash and its content."""

    provider: str
    revision: str
    content: str
    kept_at: float


class WebhookEventResult(StrEnum):
    """The result of applying a stored webhook event."""

    WAITING = "waiting"  # no operation matches yet, or an attempt is under way: it is tried again
    APPLIED = "applied"
    NOTHING_NEW = "nothing_new"  # it matched an operation, but showed nothing new about it
    DOES_NOT_FIT = "does_not_fit"
    AMBIGUOUS = "ambiguous"  # it matches two operations, so it is applied to neither
    RETIRED = "retired"  # it shows money, but its operation was retired, because its customer had never acted
    UNMATCHED = "unmatched"  # no operation matched for as long as the event is kept waiting


@record
class StoredWebhookEvent:
    """One event of a provider, stored before we acknowledged it. The journal gives `number`, in order of arrival."""

    number: int
    provider: str
    account: str  # the name in the address; "" is the main one
    event_id: str
    received_at: float
    sealed: bytes  # the webhook: headers and raw body
    result: WebhookEventResult = WebhookEventResult.WAITING
    operation_id: str | None = None
    attempts: int = 0
    due_at: float | None = None  # when to try again to apply it
    relay_due_at: float | None = None  # when to try (again) to relay it; None: no relay is wanted, or it is done


@record
class AnnouncementRow:
    """One change with an announcement, in the order of `seq`: for the feed and the event sink."""

    seq: int
    operation: Operation  # as it is now; its state at the change is in the entry's `announcement`
    entry: HistoryEntry


class Journal(Protocol):
    """The durable truth. Any number of calls may be under way at once."""

    async def claim(self, request: ClaimRequest) -> Claim:
        """Judge the claim (`core.claim.judge`). If it is owned, write the operation as SENDING with attempt 1 under
        way, first_sent_at and a lease of `lease_s`: durable before this returns."""
        ...

    async def record(self, change: OperationChange) -> Operation:
        """Write one step over the version it was read at; returns the operation with its new version and times.
        Raises StaleWrite if another writer was faster. Sets ended_at when the operation ends for the first time."""
        ...

    async def restore(
        self,
        operation: Operation,
        sealed_request: bytes | None = None,
        sealed_response: bytes | None = None,
        *,
        lease_s: float | None = None,
    ) -> Operation:
        """Write an operation again that the journal has lost, or holds in an older version than the caller knows.
        Returns the operation as it is stored then. Never writes over a newer version. If the operation has a lease, the
        lease runs for `lease_s` from now. If another operation has taken its key or guard meanwhile, that one keeps it,
        and this one becomes an incident (`journal_rollback`). A store that cannot roll back has lost nothing: it raises
        JournalUnavailable."""
        ...

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        """Take leases on operations that have none and whose `due_at` has passed: oldest first, at most `limit`, none
        of a provider in `full`. Returns them as they are stored then."""
        ...

    async def expedite(self, provider: str, *, within_s: float, limit: int) -> int:
        """Make operations of the provider due sooner: those that are UNKNOWN or PENDING, have no lease and are not due
        yet. The next `limit` of them become due within `within_s`, evenly spread, none later than it was
        (`transitions.expedited_due_times`). Returns how many were moved. Their versions stay, because no fact about
        them has changed. A second call right after the first, by any sidecar, moves only operations that have taken the
        places of those that became due."""
        ...

    async def fall_back(self, change: OperationChange, request: ClaimRequest) -> tuple[Operation, Claim]:
        """End one operation without effect and start its fallback, in one step. `change` is written as by `record`, and
        `request` as an owned claim whose `fresh.fallback_of` is the id of the first. Raises StaleWrite if another
        writer was faster; then nothing was written. The fallback's guard is not judged, because it takes over the guard
        of the first. If the fallback's key is known already, the claim is not OWNED and the first is not ended."""
        ...

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        """Lengthen leases that are still held under their tokens and have not expired. Returns the ids of those
        operations."""
        ...

    async def expire_leases(
        self, *, all_of_earlier_holders: bool = False, over_at: float = math.inf
    ) -> tuple[Operation, ...]:
        """Act upon expired leases (`core.claim.drop_lease`): the operation is in doubt, or was never sent. At start the
        engine passes `all_of_earlier_holders`: a journal that only one process can hold then ends all leases of earlier
        processes, because those are gone. A lease that ends after `over_at` has not expired, whatever the journal's
        time says. At most 1,000 a call."""
        ...

    async def read(self, operation_id: str) -> Operation | None: ...

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        """The stored sealed request and response."""
        ...

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        """The timeline, oldest first, at most 1,000 entries."""
        ...

    async def find_operations(self, query: OperationQuery) -> tuple[Operation, ...]: ...

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        """The operations in doubt now, counted. The cost grows with their number, not with the size of the journal."""
        ...

    async def newest_credentials(self, account: str, limit: int) -> tuple[tuple[str, bytes], ...]:
        """The credentials that the provider accepted for the account, each as keyed hash and sealed, the last accepted
        first. A record that comes late makes an old credential the first."""
        ...

    async def accepts_credential(self, account: str, credential: str) -> bool:
        """Whether the provider has executed a call of the credential for the account, as far as the journal keeps
        that."""
        ...

    async def store_webhook_event(self, webhook_event: StoredWebhookEvent) -> bool:
        """Store a webhook event; the journal gives its `number`. False: this event of the account is stored already."""
        ...

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        """Events that wait to be applied or relayed and are due: longest due first, then in the order they came."""
        ...

    async def update_webhook_event(self, webhook_event: StoredWebhookEvent) -> None:
        """Write result, operation_id, attempts, due_at and relay_due_at of a webhook event, by its number."""
        ...

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        """Changes with an announcement and a seq above `after`, oldest first. No change is returned before an earlier
        one is durable."""
        ...

    async def ledger_rows(self, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
        """The rows under these keys. If a row is a link, the row that it leads to is returned in its place."""
        ...

    async def write_ledger_rows(self, rows: tuple[LedgerRow, ...]) -> bool:
        """Write rows, each over the version before its own, all of them or none. False: another writer was faster."""
        ...

    async def due_ledger_rows(self, *, limit: int) -> tuple[LedgerRow, ...]:
        """Rows whose `due_at` has passed, longest due first. A caller that acts on one writes it over its version."""
        ...

    async def count_due_ledger_rows(self, within_s: float) -> int:
        """How many payments (rows under `p:`) are due now or within `within_s`; counted up to DUE_ROWS_COUNTED_MAX."""
        ...

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        """Take the lease on a cursor, or lengthen it. Returns how far the cursor has come, or None if another token
        holds it. A token can hold it only once (`transitions.cursor_lease`): after its lease has expired, or was given
        back with a lease of zero seconds, the caller needs a new token."""
        ...

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        """Move a cursor forward, never back. With a token: only while that token holds the cursor. Otherwise the cursor
        stays and this returns False."""
        ...

    async def level(self) -> JournalLevel:
        """The level of rules that every sidecar of the journal keeps. A new journal starts with the newest level."""
        ...

    async def raise_level(self, level: int) -> JournalLevel:
        """Raise the level; never lower it. From then on claims and records of a lower level raise JournalLevelError."""
        ...

    async def read_clock(self) -> StoreClock:
        """The clocks of the store, for `core.ages`, and the next due times. The caller writes the row of ages over its
        version with `write_ledger_rows`."""
        ...

    async def retire(
        self,
        *,
        retention_s: float,
        tombstone_s: float,
        limit: int,
        payments_s: float = PAYMENTS_KEPT_S,
        now_max: float = math.inf,
    ) -> int:
        """Replace operations that ended more than `retention_s` ago by tombstones. Delete tombstones older than
        `tombstone_s`, and webhook events that are done and older than `retention_s`. An operation stays if it is open
        or disputed, or has changes that some reader of outcomes (any cursor) has not reached. Ledger rows go if nobody
        has written them for `payments_s`, unless they reserve something. At most `limit` of each; returns how many in
        all. All ages are counted back from `now_max` if the journal's time is later than that."""
        ...

    async def keep_revision(self, provider: str, revision: str, content: str) -> None: ...

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None: ...

    async def latest_revision(self, provider: str) -> PolicyRevision | None: ...

    async def check_identity(self, check_value: str) -> None:
        """Store the identity secret's check value, or raise JournalUnusable if another one is stored."""
        ...

    @property
    def shared(self) -> bool:
        """Whether several processes may use the journal at the same time."""
        ...

    @property
    def can_roll_back(self) -> bool:
        """Whether the store can come back without its last writes."""
        ...

    def journal_id(self) -> str:
        """Opaque hexadecimal digits, the same for every sidecar that shares the journal. They change if the store lost
        data. "" before the store's first answer."""
        ...

    def rolled_back_s(self) -> float | None:
        """How long ago the store came back, perhaps without its last writes; None: nobody has seen that happen."""
        ...

    async def healthy(self) -> bool:
        """Whether the store would accept a write now; bounded in time, never raises."""
        ...

    async def close(self) -> None: ...
