"""An Operation: one intended effect at the provider, under one key, however many attempts. And what is kept of it.

Frozen: every change makes a new value, and only `lifecycle` makes one with another state or doubt. `version` is the one
that was read from the journal; the journal writes the next one only over that (compare and set).
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
    SENDING = "sending"  # an attempt may be on the wire; nothing earlier is in doubt
    BACKOFF = "backoff"  # waiting between tries; no effect is possible
    UNKNOWN = "unknown"  # doubt: at least one attempt may have had its effect
    PENDING = "pending"  # accepted by the provider, not final
    REQUIRES_ACTION = "requires_action"  # the customer must act (3DS)
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REQUIRES_REVIEW = "requires_review"  # only a person or new evidence can go on

    def __init__(self, stored_value: str) -> None:
        self.ended = stored_value in {"succeeded", "failed"}
        self.in_doubt = stored_value in {"unknown", "requires_review"}


class Outcome(StrEnum):
    """What became of the money, in the words that callers, metrics and operators use."""

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
    """What becomes of another payment of an intent that was paid, or whose customer is still asked to act."""

    BLOCK = "block"  # the guard holds
    FLAG = "flag"  # it may start; a second success is an incident
    ALLOW = "allow"  # several payments are meant (instalments)


@record
class Guard:
    """What keeps two open operations off the same money. What it does later is kept with it, as its policy said."""

    kind: GuardKind
    value: str  # keyed hash of scope and value
    label: str = ""  # the intent or target in clear, for people; empty for a fingerprint
    after_success: RepeatPaymentRule = RepeatPaymentRule.FLAG  # of intents
    during_action: RepeatPaymentRule = RepeatPaymentRule.FLAG  # of intents: while the customer must act


@record
class OtherPayment:
    """What an open incident holds against an operation, as far as it is known: another payment of ours, or what the
    provider shows in the place of what was asked for."""

    operation_id: str = ""  # empty: no operation of ours
    provider: str = ""
    reference: str | None = None
    money: Money | None = None


@record
class Lease:
    """The right to send, not the right to know. Times are the journal's."""

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
    key_names_purchase: bool  # the key names a purchase, not a try: taken from fields of the body
    provider_key: str | None
    fingerprint: str
    ignore: tuple[str, ...]  # the rule the fingerprint was made by; a repeat is compared under it
    request_hash: str  # keyed hash of the exact bytes of the first send
    credential: str  # keyed hash of the credential that made the call
    revision: str  # of the policy that is pinned to it
    upstream: str  # where the first send went: a key store may be regional
    created_at: float
    updated_at: float
    stamp: str = ""  # written into the request where the policy asks for it; a kept provider key keeps its stamp
    unstamped: bool = False  # the request had no room for it, so the provider never saw it
    state: State = State.PREPARED
    version: int = 0
    doubt: frozenset[int] = frozenset()
    answered_attempts: frozenset[int] = frozenset()  # of the attempts in doubt, those that a whole answer came back for
    attempts: int = 0
    attempt_under_way: bool = False
    money: Money | None = None
    guard: Guard | None = None
    reference: str | None = None
    result_class: ResultClass | None = None
    effect: Effect | None = None
    advice: Advice | None = None  # what the policy has the customer told about how it was read; None: as the class says
    key_released: bool = False
    first_sent_at: float | None = None
    ended_at: float | None = None
    due_at: float | None = None  # when somebody should look at it again
    because: str = ""  # the rule of the last decision
    incident: str | None = None  # an open contradiction; nothing is replayed over it
    other_payment: OtherPayment | None = None  # what the incident is with; absent from older journals
    cancel_sent: bool = False
    cancel_wanted: bool = False  # an operator or the policy gave it up: cancel it, if that can be shown
    no_bytes_after_at: float | None = None  # from then on no byte of an attempt that has ended can leave any more
    checks_done: int = 0  # how much of the schedule is used up
    misses: int = 0  # inquiries that found nothing and count: see `inquiry`
    absence_shown: bool = False  # they prove that it is absent; its caller, if it waits, may yet pay elsewhere
    first_miss_at: float | None = None
    undelivered: bool = False  # it was paid or accepted, and its answer reached nobody
    delivery_unknown: bool = False  # its caller may have been told: the holder was lost, or has not said so yet
    takeover: str = ""  # another key took its answer: taken, given_back, first_returned, taker_returned
    distinct: str = ""  # why the caller means it twice (Paywitness-Distinct)
    fallback_of: str | None = None  # the operation that ended without effect, and that this one stands for
    fallback_from: str = ""  # the provider of that one
    fallback_reason: str = ""  # why that one was left, as metrics say it
    fallback_to: str | None = None
    takes_remainder: bool = False  # the request names no amount: `money`, if known, is what was left of its payment
    paid_elsewhere: bool = False  # its end says that its payment was made, but not by us: see `payment`
    acts_on: str = ""  # the name of the payment that the call names; empty: it makes one
    object_intent: Guard | None = None  # of the object that it creates, and that a later step pays
    payment: str = ""  # the id of the payment that it makes, continues or acts on; empty: none
    priority: Priority = Priority.HIGH  # of the call that made it
    caps: tuple[str, ...] = ()  # of a payout: the ledger rows that count it
    in_parts: bool = False  # its intent is paid in several payments, up to a total that the call names
    beside_unknown: bool = False  # when it started, an earlier step of its payment was unknown, and may have paid
    keyed_as: str = ""  # the provider's name in keys, if it was renamed since (`formerly:`)
    account_source: AccountSource = AccountSource.CONSTANT  # what named its account
    named_account: str = ""  # its name in the policy's `accounts:`, unless only the caller's header says so
    action_since_at: float | None = None  # since when the customer must act
    action_expired: bool = False  # the customer's time is over, and an inquiry found no result; announced once
    check_asked_by: str = ""  # who had it due before its schedule: operator, webhook; empty: nobody
    lease: Lease | None = None

    def changed(self, **values: Any) -> Operation:
        """The operation with other values: `dataclasses.replace` in a tenth of the time. A call makes half a dozen, and
        each has some fifty fields."""
        after: Operation = _new(Operation)
        fields = after.__dict__
        fields.update(self.__dict__)
        fields.update(values)
        if len(fields) != len(self.__dict__):
            raise TypeError(f"an operation has no {', '.join(values.keys() - self.__dict__.keys())}")
        return after

    @property
    def as_other_payment(self) -> OtherPayment:
        """As the incident of another operation names it."""
        return OtherPayment(self.id, self.provider, self.reference, self.money)

    @property
    def provider_in_keys(self) -> str:
        return self.keyed_as or self.provider

    @property
    def abandoned(self) -> bool:
        """Nobody looks at it any more: the customer did not act in time, and an inquiry found no result."""
        return self.state is State.REQUIRES_ACTION and self.due_at is None

    @property
    def sent_stamp(self) -> str | None:
        """What the provider was given to show: nothing, where the request had no room for it."""
        return None if self.unstamped else self.stamp

    @property
    def expected_payment(self) -> ExpectedPayment:
        """What a response or an object of the provider must show to be about this operation."""
        return ExpectedPayment(None if self.takes_remainder else self.money, self.sent_stamp)

    @property
    def outcome(self) -> Outcome:
        return _OUTCOMES.get(self.state) or self._failed_outcome()

    def _failed_outcome(self) -> Outcome:
        if self.result_class in DECLINES:
            return Outcome.DECLINED
        if self.result_class is None:
            # Nobody read an answer. That something was sent is known all the same.
            return Outcome.NOT_SENT if self.attempts == 0 else Outcome.FAILED
        if self.result_class is ResultClass.ABSENT:
            return Outcome.ABSENT
        if self.result_class is ResultClass.NETWORK_CONNECT_FAILURE:
            return Outcome.NOT_SENT
        return Outcome.FAILED


# Of every state but FAILED, whose outcome is what its reading says.
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
    """What is kept of one attempt's evidence: facts and what they were read as. No payload."""

    number: int
    phase: str
    bytes_written: int
    fault: str | None
    status_code: int | None
    detail: str
    duration_s: float
    reset_by_us: bool
    classification: Classification
    request_id: str | None = None  # what the provider calls the request, for its support


class FindingKind(StrEnum):
    """What became of a look for evidence outside our own attempts."""

    HIT = "hit"  # it shows the operation, and fits it
    MISSED = "missed"  # the provider knows nothing of it
    FAILED = "failed"  # no answer, or none that says anything: refused, an error, more pages than one
    NOT_OURS = "not_ours"  # it shows something that does not fit what was asked for


@record
class Finding:
    """What an inquiry, an event, a cancel or a person showed. Facts and what they were read as; no payload."""

    source: str  # ask[0], webhook evt_1, cancel, operator
    kind: FindingKind
    status_code: int | None = None
    classification: Classification | None = None  # of a hit
    detail: str = ""


class AnnouncementKind(StrEnum):
    """What is told to the rest of the company: ends, doubts, resolutions, incidents, and what is waited for."""

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
    """One movement of money, as a ledger posts it. `key` is one for each movement, for ever."""

    key: str
    kind: str
    minor_units: int | None
    currency: str | None
    of: str  # the payment
    reverses: str | None = None  # the key of the posting that it takes back


class PayoutStage(StrEnum):
    """What became of a payout's money, as a ledger of ours and others posts it."""

    RESERVED = "reserved"  # it was claimed, and may be sent
    COMMITTED = "committed"  # it succeeded
    RELEASED = "released"  # it ended without effect, and no evidence can contradict that
    RECLAIMED = "reclaimed"  # an effect after an end without effect, or after a return


@record
class FallbackLink:
    """Where an operation fell back to, and why."""

    provider: str
    operation_id: str
    reason: str  # a name from our code: the result class, or circuit_open


@record
class Announcement:
    """What a change tells, and how the operation stood then."""

    kinds: tuple[AnnouncementKind, ...]  # empty: only of a payout's money
    outcome: Outcome
    result_class: ResultClass | None
    reference: str | None
    incident: str | None
    posting: Posting | None = None  # the movement that the change shows, the first time it does
    payout: PayoutStage | None = None
    fallback: FallbackLink | None = None
    other_payment: OtherPayment | None = None  # of an open incident


@record
class HistoryEntry:
    """One change of an operation, as its timeline tells it and as the outbox passes it on."""

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
    actor: str = ""  # who did it, where a person did
    fallback: FallbackChoice | None = None  # which other routes there were for it, and what became of each


@record
class DoubtCount:
    """What is in doubt for one provider, operation and currency, for the gauges."""

    provider: str
    operation: str
    currency: str  # empty where the money is not known
    state: State  # UNKNOWN or REQUIRES_REVIEW
    count: int
    minor_units: int
    oldest_at: float  # when the oldest of them was created
