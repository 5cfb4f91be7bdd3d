"""An Operation: one intended effect at the provider, under one key, however many attempts it takes.

Frozen: every change makes a new value, and only `lifecycle` makes one with another state or doubt. `version` is the
version that was read from the journal. The journal writes the next version only over that one (compare and set).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paywitness.core.call import Priority
from paywitness.core.classify import ExpectedPayment
from paywitness.core.credential_owners import AccountSource
from paywitness.core.fallback import FallbackChoice
from paywitness.core.money import Money
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.core.result import DECLINES, Advice, Classification, Effect, ResultClass


class State(StrEnum):
    ended: bool
    in_doubt: bool

    PREPARED = "prepared"  # journalled, nothing sent
    SENDING = "sending"  # an attempt may be on the wire; no earlier attempt is in doubt
    BACKOFF = "backoff"  # waits between two attempts; no effect is possible
    UNKNOWN = "unknown"  # doubt: at least one attempt may have had its effect
    PENDING = "pending"  # accepted by the provider, not final
    REQUIRES_ACTION = "requires_action"  # the customer must act (3DS)
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REQUIRES_REVIEW = "requires_review"  # only a person or new evidence can end it

    def __init__(self, stored_value: str) -> None:
        self.ended = stored_value in {"succeeded", "failed"}
        self.in_doubt = stored_value in {"unknown", "requires_review"}


class Outcome(StrEnum):
    """The outcome of a payment, in the words that callers, metrics and operators use."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DECLINED = "declined"
    PENDING = "pending"
    REQUIRES_ACTION = "requires_action"
    NOT_SENT = "not_sent"
    ABSENT = "absent"  # sent, and confirmed not executed: no effect, and none will follow
    IN_FLIGHT = "in_flight"
    UNKNOWN = "unknown"
    NONE = "none"  # no operation


class GuardKind(StrEnum):
    INTENT = "intent"
    TARGET = "target"
    FINGERPRINT = "fingerprint"


class RepeatPaymentRule(StrEnum):
    """Whether an intent may have another payment after one that was paid, or while its customer must still act."""

    BLOCK = "block"  # the guard prevents it
    FLAG = "flag"  # it may start; a second success is an incident
    ALLOW = "allow"  # the intent has several payments on purpose (instalments)


@record
class Guard:
    """Prevents two open operations on the same money. Its later behaviour is stored with it, as its policy was then."""

    kind: GuardKind
    value: str  # keyed hash of scope and value
    label: str = ""  # the intent or target in clear, for people; empty for a fingerprint
    after_success: RepeatPaymentRule = RepeatPaymentRule.FLAG  # of intents
    during_action: RepeatPaymentRule = RepeatPaymentRule.FLAG  # of intents: while the customer must act


@record
class OtherPayment:
    """The other side of an open incident, as far as it is known: another payment of ours, or the values that the
    provider shows instead of the expected ones."""

    operation_id: str = ""  # empty: no operation of ours
    provider: str = ""
    reference: str | None = None
    money: Money | None = None


@record
class Lease:
    """The right to send. Evidence can be recorded without it. Times are the journal's."""

    token: str
    until_at: float


_new = object.__new__


@dataclass(frozen=True)  # at run time too; no slots: `changed` copies the dictionary
class Operation:
    id: str
    key: str  # keyed hash of provider, account, operation and client_key
    generation: int
    provider: str
    operation: str
    kind: OperationKind
    account: str  # keyed hash of the account's selectors
    client_key: str
    key_source: str  # header:Idempotency-Key, body:metadata.order_id, paywitness-key, generated
    key_names_purchase: bool  # True: the key comes from fields of the body, so it names a purchase and not one try
    provider_key: str | None
    fingerprint: str
    ignore: tuple[str, ...]  # the rule by which the fingerprint was made; a duplicate is compared by the same rule
    request_hash: str  # keyed hash of the exact bytes of the first send
    credential: str  # keyed hash of the credential that made the call
    revision: str  # of the policy that is pinned to it
    upstream: str  # the address of the first send, because a key store may be regional
    created_at: float
    updated_at: float
    # Written into the request if the policy says so; as long as the provider key stays, the stamp stays.
    stamp: str = ""
    unstamped: bool = False  # the request had no room for the stamp, so the provider never saw it
    state: State = State.PREPARED
    version: int = 0
    doubt: frozenset[int] = frozenset()
    answered_attempts: frozenset[int] = frozenset()  # the attempts in doubt that got a whole response
    attempts: int = 0
    attempt_under_way: bool = False
    money: Money | None = None
    guard: Guard | None = None
    reference: str | None = None
    result_class: ResultClass | None = None
    effect: Effect | None = None
    advice: Advice | None = None  # the advice that the policy gives for this result; None: that of the result class
    key_released: bool = False
    first_sent_at: float | None = None
    ended_at: float | None = None
    due_at: float | None = None  # when the resolver should take it again
    because: str = ""  # the rule of the last decision
    incident: str | None = None  # the kind of an open contradiction; no duplicate gets a replay while it is open
    other_payment: OtherPayment | None = None  # the other side of the incident; missing in older journals
    cancel_sent: bool = False
    # An operator or the policy wants it cancelled at the provider, if the result can be shown.
    cancel_wanted: bool = False
    no_bytes_after_at: float | None = None  # from then on no byte of an ended attempt can leave
    checks_done: int = 0  # inquiries of the schedule that are used up
    misses: int = 0  # inquiries that found nothing and count (see `inquiry`)
    absence_shown: bool = False  # the misses prove that it is absent; a caller that still waits may pay elsewhere
    first_miss_at: float | None = None
    undelivered: bool = False  # it was paid or accepted, and the reply reached no caller
    delivery_unknown: bool = False  # its caller may have got a reply: the holder was lost, or has not reported yet
    takeover: str = ""  # whether another key took its reply: taken, given_back, first_returned, taker_returned
    distinct: str = ""  # the caller's reason for a second payment (Paywitness-Distinct)
    fallback_of: str | None = None  # the operation that ended without effect, and that this one replaces
    fallback_from: str = ""  # the provider of that operation
    fallback_reason: str = ""  # the cause of the fallback, as metrics name it
    fallback_to: str | None = None
    takes_remainder: bool = False  # the request names no amount: `money`, if known, is the rest of its payment
    paid_elsewhere: bool = False  # its result says that its payment was made, but not by us (see `payment`)
    acts_on: str = ""  # the name of the payment that the call acts on; empty: the call makes a payment
    object_intent: Guard | None = None  # the intent of the object that it creates, which a later step pays
    payment: str = ""  # the id of the payment that it makes, continues or acts on; empty: none
    priority: Priority = Priority.HIGH  # of the call that made it
    caps: tuple[str, ...] = ()  # of a payout: the ledger rows that count it
    in_parts: bool = False  # its intent is paid in several payments, up to a total that the call names
    beside_unknown: bool = False  # when it started, an earlier step of its payment was unknown and may have paid
    keyed_as: str = ""  # the provider's name in keys, if the provider was renamed since (`formerly:`)
    account_source: AccountSource = AccountSource.CONSTANT  # where its account came from
    # The account's name in the policy's `accounts:`; empty if only the caller's header names it.
    named_account: str = ""
    action_since_at: float | None = None  # since when the customer must act
    action_expired: bool = False  # the customer's time is over, and an inquiry found no result; announced once
    check_asked_by: str = ""  # who made it due before its schedule: operator, webhook; empty: nobody
    lease: Lease | None = None

    def changed(self, **values: Any) -> Operation:
        """The operation with other values, in a tenth of the time of `dataclasses.replace`. A call makes about six such
        copies, each with some fifty fields."""
        after: Operation = _new(Operation)
        fields = after.__dict__
        fields.update(self.__dict__)
        fields.update(values)
        if len(fields) != len(self.__dict__):
            raise TypeError(f"an operation has no {', '.join(values.keys() - self.__dict__.keys())}")
        return after

    @property
    def as_other_payment(self) -> OtherPayment:
        """This operation as the incident of another operation names it."""
        return OtherPayment(self.id, self.provider, self.reference, self.money)

    @property
    def provider_in_keys(self) -> str:
        return self.keyed_as or self.provider

    @property
    def abandoned(self) -> bool:
        """Whether inquiries have ended for good: the customer did not act in time, and an inquiry found no result."""
        return self.state is State.REQUIRES_ACTION and self.due_at is None

    @property
    def sent_stamp(self) -> str | None:
        """The stamp that the provider can show. None if the request had no room for it."""
        return None if self.unstamped else self.stamp

    @property
    def expected_payment(self) -> ExpectedPayment:
        """The amount and stamp that a response or an object of the provider must show to be about this operation."""
        return ExpectedPayment(None if self.takes_remainder else self.money, self.sent_stamp)

    @property
    def outcome(self) -> Outcome:
        return _OUTCOMES.get(self.state) or self._failed_outcome()

    def _failed_outcome(self) -> Outcome:
        if self.result_class in DECLINES:
            return Outcome.DECLINED
        if self.result_class is None:
            # No response was read. But it is known whether something was sent.
            return Outcome.NOT_SENT if self.attempts == 0 else Outcome.FAILED
        if self.result_class is ResultClass.ABSENT:
            return Outcome.ABSENT
        if self.result_class is ResultClass.NETWORK_CONNECT_FAILURE:
            return Outcome.NOT_SENT
        return Outcome.FAILED


# For every state but FAILED, whose outcome depends on its result class.
_OUTCOMES = {
    State.SUCCEEDED: Outcome.SUCCEEDED,
    State.PENDING: Outcome.PENDING,
    State.REQUIRES_ACTION: Outcome.REQUIRES_ACTION,
    State.UNKNOWN: Outcome.UNKNOWN,
    State.REQUIRES_REVIEW: Outcome.UNKNOWN,
    State.PREPARED: Outcome.IN_FLIGHT,
    State.SENDING: Outcome.IN_FLIGHT,
    State.BACKOFF: Outcome.IN_FLIGHT,
}


@record
class AttemptSummary:
    """The stored facts of one attempt's evidence and its classification. No payload."""

    number: int
    phase: str
    bytes_written: int
    fault: str | None
    status_code: int | None
    detail: str
    duration_s: float
    reset_by_us: bool
    classification: Classification
    request_id: str | None = None  # the provider's id of the request, for its support


class FindingKind(StrEnum):
    """The result of looking for evidence outside our own attempts."""

    HIT = "hit"  # it shows the operation, and fits it
    MISSED = "missed"  # the provider does not know the operation
    FAILED = "failed"  # no response, or one that shows nothing: a refusal, an error, one page of several
    NOT_OURS = "not_ours"  # it shows an object that does not fit the operation


@record
class Finding:
    """The facts that an inquiry, an event, a cancel or a person showed, and their classification. No payload."""

    source: str  # ask[0], webhook evt_1, cancel, operator
    kind: FindingKind
    status_code: int | None = None
    classification: Classification | None = None  # of a hit
    detail: str = ""


class AnnouncementKind(StrEnum):
    """What the rest of the company learns: ends, doubts, resolutions, incidents, and what an operation waits for."""

    ENDED = "ended"
    DOUBT_OPENED = "doubt_opened"
    RESOLVED = "resolved"  # a doubt ended, by evidence
    REVIEW_OPENED = "review_opened"
    INCIDENT_OPENED = "incident_opened"
    INCIDENT_CLOSED = "incident_closed"
    REVERSED = "reversed"
    RETURNED = "returned"  # the provider took the movement back after it had succeeded
    DISPUTED = "disputed"
    DISPUTE_WON = "dispute_won"
    MOVED_ELSEWHERE = "moved_elsewhere"  # a capture or refund of the payment that no call of ours made
    AUTHORIZATION_EXPIRES = "authorization_expires"
    AUTHORIZATION_EXPIRED = "authorization_expired"
    PENDING = "pending"
    REQUIRES_ACTION = "requires_action"
    ACTION_EXPIRED = "action_expired"  # the customer's time to act is over, and an inquiry found no result
    FALLBACK = "fallback"  # it ended without effect, and another operation was started for it


@record
class Posting:
    """One movement of money, as a ledger posts it. Each movement has one `key`, which never changes."""

    key: str
    kind: str
    minor_units: int | None
    currency: str | None
    of: str  # the payment's id
    reverses: str | None = None  # the key of the posting that this one takes back


class PayoutStage(StrEnum):
    """A stage of a payout's money, for the ledgers of this product and of others."""

    RESERVED = "reserved"  # claimed, so it may be sent
    COMMITTED = "committed"  # it succeeded
    RELEASED = "released"  # it ended without effect, and no evidence can contradict that
    RECLAIMED = "reclaimed"  # an effect after an end without effect, or after a return


@record
class FallbackLink:
    """The operation that an operation fell back to, and why."""

    provider: str
    operation_id: str
    reason: str  # a name from our code: the result class, or circuit_open


@record
class Announcement:
    """The announcement of a change, and the operation's values at that time."""

    kinds: tuple[AnnouncementKind, ...]  # empty: the change is only about a payout's money
    outcome: Outcome
    result_class: ResultClass | None
    reference: str | None
    incident: str | None
    posting: Posting | None = None  # the movement, in the change that first shows it
    payout: PayoutStage | None = None
    fallback: FallbackLink | None = None
    other_payment: OtherPayment | None = None  # of an open incident


@record
class HistoryEntry:
    """One change of an operation, for its timeline and for the outbox."""

    at: float
    version: int
    source: str  # caller, recovery, resolver, webhook, operator, harvest, spool
    events: tuple[str, ...]
    state: State
    doubt: frozenset[int]
    attempt: AttemptSummary | None = None
    action: str = ""
    because: str = ""
    delay_s: float | None = None
    note: str = ""
    finding: Finding | None = None
    announcement: Announcement | None = None
    actor: str = ""  # the person who did it, if a person did
    fallback: FallbackChoice | None = None  # the other routes that were considered, and the verdict on each


@record
class DoubtCount:
    """The operations in doubt of one provider, operation and currency, for the gauges."""

    provider: str
    operation: str
    currency: str  # empty if the amount is not known
    state: State  # UNKNOWN or REQUIRES_REVIEW
    count: int
    minor_units: int
    oldest_at: float  # when the oldest of them was created
