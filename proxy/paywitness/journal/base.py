"""The journal's interface: what every store promises, whatever it is made of.

- A method returns when its write is durable, or raises JournalUnavailable: then whether it was taken is not known.
- `claim` and `record` are each one step: nothing else comes between what they read and what they write.
- Time is the journal's own and never goes back; every answer that holds a time says so.
- Every claimed operation receives records until it is ended, in doubt with nobody holding it, or its lease expires.
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
OWN_ROWS = frozenset({AGES_KEY, FLEET_KEY})  # of the journal itself, and never forgotten
PAYMENTS_KEPT_S = DEFAULTS.payments_kept_s  # of a caller that says nothing else

DUE_ROWS_COUNTED_MAX = 10_000  # rows that a count looks at: some milliseconds of a Redis


@record
class OperationChange:
    """One step of an operation, to be written whole or not at all.

    `operation` is as it shall stand; its `version` is still the one that was read, and the write succeeds only over
    that (else StaleWrite). Its lease is kept as given: None gives it back. What it is (all that identifies it, its
    money, its guard, where it went first) was written with the claim and stays; a change says how it stands.
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
    sealed_response: bytes | None = None  # kept for replay; None keeps what is there
    erase_request: bool = False  # the stored request is no longer needed
    accepted_credential: bool = False  # the provider accepted operation.credential for operation.account
    sealed_credential: bytes | None = None  # that credential, kept for background calls of the account
    finding: Finding | None = None
    announcement: Announcement | None = None  # what it tells the rest of the company; written with it, so never lost
    actor: str = ""
    fallback: FallbackChoice | None = None  # which other routes there were for it, and what became of each
    shown: ShownBalance | None = None  # set: the change also changes the operation's payment, by what it shows
    numbers_forgotten: bool = False  # the journal may have forgotten movements of the payment a moment ago
    spent_change: int = 0  # of a payout: by so many minor units the change moves what its caps count


@record
class LedgerRow:
    """One row of what is kept beside operations, and longer: payments, their names, payout references, caps, approvals.

    A row that begins with `@` is a link: the key of another row follows. Written over exactly the version before."""

    key: str
    version: int
    text: str
    due_at: float | None = None  # when somebody should look at it


@record
class NextDue:
    """When the first of each kind is due, in the journal's time, however far ahead. Infinity: there is none."""

    operations: Mapping[str, float] = field(default_factory=dict)  # by provider, of operations that nobody holds
    lease: float = math.inf  # when the first lease ends
    webhook_event: float = math.inf
    ledger_row: float = math.inf
    announced_seq: int = 0  # no change that tells something has a higher one


@record
class StoreClock:
    """What the store's clocks say, and the row of ages and what is due next as they stand in the same step."""

    at: float  # the journal's time, which never goes back
    raw_at: float  # the store's clock as it is
    ages: LedgerRow | None
    next_due: NextDue = field(default_factory=NextDue)


@record
class OperationQuery:
    """Which operations to list: newest first, at most `limit`, older than `before` (an operation id) when given."""

    provider: str | None = None
    operation: str | None = None
    states: frozenset[State] = frozenset()
    key: str | None = None  # client_key or provider_key; also of a key that was given its answer, or refused over it
    reference: str | None = None
    stamp: str | None = None  # our id in the provider's object: an operation's own, or one that kept it
    guard: str | None = None  # a guard's value: those that still keep it (`core.guard.indexed_guard`)
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
    """A policy revision in use: which provider's, its content hash and the content itself."""

    provider: str
    revision: str
    content: str
    kept_at: float


class WebhookEventResult(StrEnum):
    """What became of a webhook event that was stored."""

    WAITING = "waiting"  # nothing matches yet, or an attempt is under way: to be tried again
    APPLIED = "applied"
    NOTHING_NEW = "nothing_new"  # it matched, and said nothing that was not known, or nothing at all
    DOES_NOT_FIT = "does_not_fit"
    AMBIGUOUS = "ambiguous"  # two operations could be meant, so neither is
    RETIRED = "retired"  # it tells of money, and its operation was retired, because its customer had never acted
    UNMATCHED = "unmatched"  # nothing matched for as long as it is kept waiting


@record
class StoredWebhookEvent:
    """One event of a provider, kept before it was acknowledged. `number` is the journal's, in the order they came."""

    number: int
    provider: str
    account: str  # the name in the address; "" is the main one
    event_id: str
    received_at: float
    sealed: bytes  # the delivery: headers and raw body
    result: WebhookEventResult = WebhookEventResult.WAITING
    operation_id: str | None = None
    attempts: int = 0
    due_at: float | None = None  # when to try again to apply it
    relay_due_at: float | None = None  # when to try (again) to relay it; None: not wanted, or done


@record
class AnnouncementRow:
    """One change that tells something, in the order of `seq`: the feed, and what the sink is sent."""

    seq: int
    operation: Operation  # what it is; how it stood then is in the entry's `announcement`
    entry: HistoryEntry


class Journal(Protocol):
    """The durable truth. Any number of calls may be under way at once."""

    async def claim(self, request: ClaimRequest) -> Claim:
        """Judge the claim (`core.claim.judge`) and, where it is owned, write the operation as SENDING with attempt 1
        under way, first_sent_at and a lease of `lease_s`: durable before this returns."""
        ...

    async def record(self, change: OperationChange) -> Operation:
        """Write one step over the version it was read at; returns the operation with its new version and times.
        Raises StaleWrite where somebody was faster. Sets ended_at when the state ends for the first time."""
        ...

    async def restore(
        self,
        operation: Operation,
        sealed_request: bytes | None = None,
        sealed_response: bytes | None = None,
        *,
        lease_s: float | None = None,
    ) -> Operation:
        """Write an operation again that the journal has lost, or has older than it is known here; as it now stands, and
        never over a newer version. Its lease, where it has one, runs for `lease_s` from now. Where its key or guard was
        since given to another, that one keeps it, and this one is an incident (`journal_rollback`). A store that cannot
        go back has lost nothing: it raises JournalUnavailable."""
        ...

    async def take_due(
        self, token: str, lease_s: float, *, limit: int, full: frozenset[str] = frozenset()
    ) -> tuple[Operation, ...]:
        """Hold operations that nobody holds and whose `due_at` has passed, oldest first, at most `limit`, none of a
        provider that is `full`. Their state and version are as they now stand."""
        ...

    async def expedite(self, provider: str, *, within_s: float, limit: int) -> int:
        """Look sooner at what is UNKNOWN or PENDING at the provider, held by nobody and not due yet: the next `limit`
        of them are due within `within_s`, evenly spread, none later than it was; how many were moved
        (`transitions.expedited_due_times`). No new version: nothing became true. Asked again at once, by anybody, it
        moves only what took the place of the due."""
        ...

    async def fall_back(self, change: OperationChange, request: ClaimRequest) -> tuple[Operation, Claim]:
        """End one operation without effect and start the other that stands for it, in one step: `change` as `record`,
        `request` as an owned claim whose `fresh.fallback_of` is the first's id. Raises StaleWrite where somebody was
        faster; then nothing was written. The second's guard is not asked: it takes over the first's. Where the second's
        key is already known the claim is not OWNED and the first is not ended."""
        ...

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        """Lengthen leases that are still held under their tokens and have not expired; the ids that were."""
        ...

    async def expire_leases(
        self, *, all_of_earlier_holders: bool = False, over_at: float = math.inf
    ) -> tuple[Operation, ...]:
        """Act upon expired leases (`core.claim.drop_lease`): doubt, or never sent. At start, a journal that only one
        process can hold passes `all_of_earlier_holders`: whoever held them is gone. A lease that ends after `over_at`
        is not over, whatever the journal's time says. At most 1,000 a call."""
        ...

    async def read(self, operation_id: str) -> Operation | None: ...

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        """The sealed request and response that are kept."""
        ...

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        """The timeline, oldest first, at most 1,000 entries."""
        ...

    async def find_operations(self, query: OperationQuery) -> tuple[Operation, ...]: ...

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        """What is in doubt now. Its cost grows with what is in doubt, not with what is journalled."""
        ...

    async def newest_credentials(self, account: str, limit: int) -> tuple[tuple[str, bytes], ...]:
        """The credentials that the provider accepted for the account, the last accepted first, as keyed hash and
        sealed. What is recorded late makes an old one the first."""
        ...

    async def accepts_credential(self, account: str, credential: str) -> bool:
        """Whether the provider has executed a call of the credential for the account, as far as that is kept."""
        ...

    async def store_webhook_event(self, webhook_event: StoredWebhookEvent) -> bool:
        """Store a webhook event (its `number` is given by the journal); False where this event of the account is
        known."""
        ...

    async def due_webhook_events(self, *, limit: int) -> tuple[StoredWebhookEvent, ...]:
        """Those that wait to be applied or relayed and are due: longest due first, then in the order they came."""
        ...

    async def update_webhook_event(self, webhook_event: StoredWebhookEvent) -> None:
        """Write result, operation_id, tries, due_at and relay_due_at of a webhook event, by its number."""
        ...

    async def announcements(self, after: int, *, limit: int) -> tuple[AnnouncementRow, ...]:
        """Changes that tell something, with a seq above `after`, oldest first. None is ever told before an earlier
        one that is not yet durable."""
        ...

    async def ledger_rows(self, keys: tuple[str, ...]) -> tuple[LedgerRow | None, ...]:
        """The rows under these keys. A link is followed: the row that it leads to stands in its place."""
        ...

    async def write_ledger_rows(self, rows: tuple[LedgerRow, ...]) -> bool:
        """Write rows, each over the version before its own, all of them or none; False: somebody was faster."""
        ...

    async def due_ledger_rows(self, *, limit: int) -> tuple[LedgerRow, ...]:
        """Rows whose `due_at` has passed, longest due first. Whoever acts on one writes it over its version."""
        ...

    async def count_due_ledger_rows(self, within_s: float) -> int:
        """How many payments (rows under `p:`) are due now or within `within_s`; counted up to DUE_ROWS_COUNTED_MAX."""
        ...

    async def take_cursor(self, name: str, token: str, lease_s: float) -> int | None:
        """Hold a cursor, or hold it longer: how far it has come; None where another holds it. A token holds it once
        (`transitions.holds_cursor`): run out, or given back by a lease of zero seconds, it is over, and a new one is
        needed."""
        ...

    async def move_cursor(self, name: str, seq: int, token: str = "") -> bool:
        """Move a cursor on, never back. With a token only while that one holds it: else False, and it is not moved."""
        ...

    async def level(self) -> JournalLevel:
        """Which rules every sidecar of the journal keeps. A new journal has the newest level from its start."""
        ...

    async def raise_level(self, level: int) -> JournalLevel:
        """Raise it; never lower it. From then on claims and records of a lower level raise JournalLevelError."""
        ...

    async def read_clock(self) -> StoreClock:
        """The clocks of the store, for `core.ages`, and what is due next. The row is written over its version by
        `write_ledger_rows`."""
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
        """Make tombstones of operations that ended more than `retention_s` ago, and forget tombstones of more than
        `tombstone_s`, and webhook events that are done and as old as the retention. Never of what is open, disputed, or
        has changes that a reader of outcomes (any cursor) has not come to. At most `limit` of each; how many in all.
        Ledger rows go when nobody has written them for `payments_s`, unless they reserve something. All of it is
        counted back from `now_max`, if the journal's time is later than that."""
        ...

    async def keep_revision(self, provider: str, revision: str, content: str) -> None: ...

    async def revision(self, provider: str, revision: str) -> PolicyRevision | None: ...

    async def latest_revision(self, provider: str) -> PolicyRevision | None: ...

    async def check_identity(self, check_value: str) -> None:
        """Keep the identity secret's check value, or raise JournalUnusable where another one is kept."""
        ...

    @property
    def shared(self) -> bool:
        """Whether several processes may hold it at a time."""
        ...

    @property
    def can_roll_back(self) -> bool:
        """Whether the store can come back without its last writes."""
        ...

    def journal_id(self) -> str:
        """Hexadecimal digits that tell nothing else, the same for all who share the journal. Another one follows if the
        store lost what it knew. "" before the store first answered."""
        ...

    def rolled_back_s(self) -> float | None:
        """How long ago the store was seen to come back, perhaps without its last writes; None: not that it is known."""
        ...

    async def healthy(self) -> bool:
        """Whether a write would be taken now; bounded in time, never raises."""
        ...

    async def close(self) -> None: ...
