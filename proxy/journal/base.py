"""The journal's interface: what every store promises, whatever it is made of.

- A method returns when its write is durable, or raises JournalUnavailable: then whether it was taken is not known.
- `claim` and `record` are each one step: nothing else comes between what they read and what they write.
- Time is the journal's own and never goes back; every answer that holds a time says so.
- Every claimed operation receives records until it is ended, in doubt with nobody holding it, or its lease expires.
- Ciphertexts are opaque here: the engine seals requests and responses before it hands them over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from proxy.core.claim import Claim, ClaimRequest
from proxy.core.operation import AttemptSummary, HistoryEntry, Operation, State


@dataclass(frozen=True, slots=True)
class Change:
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


@dataclass(frozen=True, slots=True)
class Listing:
    """Which operations to list: newest first, at most `limit`, older than `before` (an operation id) when given."""

    provider: str | None = None
    operation: str | None = None
    states: frozenset[State] = frozenset()
    key: str | None = None  # client_key or provider_key
    reference: str | None = None
    incidents_only: bool = False
    limit: int = 50
    before: str | None = None


@dataclass(frozen=True, slots=True)
class DoubtCount:
    """What is in doubt for one provider, operation and currency, for the gauges."""

    provider: str
    operation: str
    currency: str  # empty where the money is not known
    state: State  # UNKNOWN or REQUIRES_REVIEW
    count: int
    minor_units: int
    oldest_at: float  # when the oldest of them was created


@dataclass(frozen=True, slots=True)
class Revision:
    """A policy revision in use: which provider's, its content hash and the content itself."""

    provider: str
    revision: str
    content: str
    kept_at: float


class Journal(Protocol):
    """The durable truth. Any number of calls may be under way at once."""

    async def claim(self, request: ClaimRequest) -> Claim:
        """Judge the claim (`core.claim.judge`) and, where it is owned, write the operation as SENDING with attempt 1
        under way, first_sent_at and a lease of `lease_s`: durable before this returns."""
        ...

    async def record(self, change: Change) -> Operation:
        """Write one step over the version it was read at; returns the operation with its new version and times.
        Raises StaleWrite where somebody was faster. Sets ended_at when the state ends for the first time."""
        ...

    async def take_lease(
        self, operation: Operation, token: str, lease_s: float, *, source: str = "resolver"
    ) -> Operation:
        """Hold an operation in doubt that nobody holds, at exactly this version, to re-send or ask. Else StaleWrite.
        Asked again with its token, it gives the same answer."""
        ...

    async def renew(
        self, operation_ids: tuple[str, ...], token_of: Mapping[str, str], lease_s: float
    ) -> frozenset[str]:
        """Lengthen leases that are still held under their tokens and have not expired; the ids that were."""
        ...

    async def expire_leases(self, *, all_of_earlier_holders: bool = False) -> tuple[Operation, ...]:
        """Act upon expired leases (`core.claim.drop_lease`): doubt, or never sent. At start, a journal that only one
        process can hold passes `all_of_earlier_holders`: whoever held them is gone. At most 1,000 a call."""
        ...

    async def read(self, operation_id: str) -> Operation | None: ...

    async def sealed(self, operation_id: str) -> tuple[bytes | None, bytes | None]:
        """The sealed request and response that are kept."""
        ...

    async def history(self, operation_id: str) -> tuple[HistoryEntry, ...]:
        """The timeline, oldest first, at most 1,000 entries."""
        ...

    async def listing(self, listing: Listing) -> tuple[Operation, ...]: ...

    async def doubt_counts(self) -> tuple[DoubtCount, ...]:
        """What is in doubt now. Its cost grows with what is in doubt, not with what is journalled."""
        ...

    async def keep_revision(self, provider: str, revision: str, content: str) -> None: ...

    async def revision(self, provider: str, revision: str) -> Revision | None: ...

    async def latest_revision(self, provider: str) -> Revision | None: ...

    async def check_identity(self, check_value: str) -> None:
        """Keep the identity secret's check value, or raise JournalUnfit where another one is kept."""
        ...

    async def healthy(self) -> bool:
        """Whether a write would be taken now; bounded in time, never raises."""
        ...

    async def close(self) -> None: ...
