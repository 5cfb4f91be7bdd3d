"""CallContext: one call on its way through the engine, and what the engine knows of it beside the operation itself. And
what the core needs of both to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Call, Priority
from paywitness.core.circuit import CallGroup
from paywitness.core.classify import ExpectedPayment, reference_text
from paywitness.core.decide import DecisionContext, decision_context
from paywitness.core.evidence import Evidence
from paywitness.core.identity import Identity
from paywitness.core.limit_info import LimitInfo
from paywitness.core.operation import AttemptSummary, Operation
from paywitness.core.payment import Payment
from paywitness.core.payment_claims import PaymentClaim
from paywitness.core.payout import PayoutClaim
from paywitness.core.policy import Policy
from paywitness.core.recognise import RecognisedCall
from paywitness.core.record import record
from paywitness.core.reply import NO_SHAPE, ErrorShape, Reply
from paywitness.core.result import Classification
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.limits.admission import Admitted
from paywitness.limits.budgets import Grant
from paywitness.limits.circuits import Probe
from paywitness.randomness import Randomness

RESOLVER = "resolver"  # as the timeline tells whose call it is
# How long the journal may take to write an end: five tries of a Redis with their pauses, or one call of a SQLite.
RECORD_TIME_MAX_S = 6.0


@record
class AttemptPermit:
    """The right to one attempt at a provider."""

    policy: Policy
    group: CallGroup
    admitted: Admitted
    probe: Probe | None
    party: str  # who is held if the provider asks to wait


@dataclass(slots=True, eq=False)
class Leader:
    """One that is ahead under its key."""

    operation: Operation | None  # that it would start
    claim_answered: bool = False  # its claim was answered, or is not made after all
    _released: asyncio.Future[None] | None = None  # of those behind it; most have nobody behind them

    def release_followers(self) -> None:
        self.claim_answered = True
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    async def wait_for_claim(self, within_s: float) -> bool:
        """Whether its claim was answered in time."""
        if not self.claim_answered and within_s > 0:
            if self._released is None:
                self._released = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._released}, timeout=within_s)
        return self.claim_answered


@dataclass(slots=True)
class CallContext:
    call: Call
    policy: Policy
    tree: Tree
    identity: Identity
    expected: ExpectedPayment
    shape: ErrorShape
    token: str
    deadline_mono: float
    still_there: Callable[[], bool]
    request: StoredRequest
    reply: asyncio.Future[Reply]  # what the caller is told; at the deadline, whether or not the call is over
    finished: asyncio.Future[Reply]  # how the call ended; what waits for it is told this
    tries: int = 1
    last_delay_s: float = 0.0
    byte_started: bool = False  # of this attempt: from here on it belongs to the operation, not to the caller
    has_sent: bool = False  # whether any attempt of this call started a byte
    journal_at: float = 0.0  # the journal's time when it answered the claim, and our own then: ages are counted so,
    journal_boot: float = 0.0  #   because the journal's time never goes back and this clock counts suspension
    holds_unstorable_data: bool = False  # the request holds what must not be kept
    request_available: bool = True  # the first attempt's very bytes can be sent again
    inquiry_found_nothing: bool = False  # the provider has just been asked, and knows nothing of it
    source: str = "caller"  # whose call it is, as the timeline tells it
    priority: Priority = Priority.HIGH
    refusal: str = ""  # why the gate did not permit anything new
    permit: AttemptPermit | None = None  # for the attempt that comes next, or is under way
    leader: Leader | None = None  # where it is the one ahead under its key
    grant: Grant | None = None  # what the retry that comes next was allowed by
    limit_info: LimitInfo | None = None  # what held it back, as its answer tells
    circuit_refused: bool = False  # what ended the last attempt before it began
    operation: Operation | None = None  # first the one it would start, then as it last stood
    payment_claim: PaymentClaim = PaymentClaim()  # what the call means for a payment
    payment: Payment | None = None  # that it acts on, as it stood before the call was claimed
    payout_claim: PayoutClaim | None = None  # what the call means for the rules of its payouts
    parameters: Mapping[str, str] = field(default_factory=dict)  # of its path
    credential_accepted: bool = True  # it made the operation that its claim named, or may be shown its reply
    response_tree: Tree = None  # of the attempt that ended last, decoded
    delivery_pending: bool = False  # its end is recorded as perhaps undelivered: what became of the reply follows
    owner: str | None = None  # the mark of the one that the provider says the credential is of, if it was asked
    waits_for: Operation | None = None  # a movement of the same payment that is in flight
    routes_left: tuple[str, ...] = ()  # the providers that it fell back from
    sent_before: bool = False  # whether any attempt at those started a byte
    pays_elsewhere_if_absent: bool = False  # it made the operation, and takes another route once that is known absent

    def send_reply(self, reply: Reply) -> bool:
        """Answer the caller, unless it has been answered. Whether it gets this reply."""
        is_delivered = not self.caller_gone
        if not self.reply.done():
            self.reply.set_result(reply)
        return is_delivered

    def go_on_as(self, second: Operation, *, journal_at: float, journal_boot: float) -> None:
        """It has fallen back: from here on it is the second's call, and nothing of it was sent."""
        self.routes_left = (*self.routes_left, second.fallback_from)
        self.sent_before = self.sent_before or self.has_sent
        self.tries, self.byte_started, self.has_sent, self.last_delay_s = 1, False, False, 0.0
        self.circuit_refused, self.limit_info = False, None
        self.journal_at, self.journal_boot = journal_at, journal_boot
        self.operation = second

    @property
    def may_have_sent(self) -> bool:
        """Whether a byte of the operation may have left, by this call or by one before it."""
        return self.byte_started or (self.operation is not None and bool(self.operation.doubt))

    @property
    def in_background(self) -> bool:
        """Whether nobody asked for it now: the resolver's."""
        return self.source == RESOLVER

    @property
    def caller_gone(self) -> bool:
        """Whether the caller has gone, or was told already that nothing is known."""
        return self.reply.done() or not self.still_there()

    def outlasts_record(self, now_mono: float, record_s: float = RECORD_TIME_MAX_S) -> bool:
        """Whether the caller will still wait when a write that begins now has ended. Only such a caller may be recorded
        as one who gets the reply: at its deadline it is told 504, even if the write is under way."""
        return not self.caller_gone and self.deadline_mono - now_mono > record_s


def caller_context(
    recognised: RecognisedCall,
    shape: ErrorShape,
    still_there: Callable[[], bool],
    clock: Clock,
    randomness: Randomness,
) -> CallContext:
    """The context of a call that came just now. Nothing has been written or sent so far."""
    call, policy = recognised.call, recognised.policy
    loop = asyncio.get_running_loop()
    token, now = randomness.token(), clock.now()
    return CallContext(
        call,
        policy,
        recognised.tree,
        recognised.identity,
        ExpectedPayment(recognised.money),
        shape,
        token,
        clock.mono() + (call.options.timeout_s or policy.timeouts.deadline_s),
        still_there,
        StoredRequest.of(call),
        loop.create_future(),
        loop.create_future(),
        holds_unstorable_data=recognised.holds_unstorable_data,
        priority=recognised.priority,
        payment_claim=recognised.payment,
        payout_claim=recognised.payout,
        parameters=recognised.parameters,
        operation=recognised.fresh_operation(randomness.operation_id(now), now),
    )


def background_context(
    operation: Operation, policy: Policy, request: StoredRequest | None, token: str, clock: Clock
) -> CallContext:
    """A call that nobody waits for: the resolver's. Its deadline has passed, so nothing new starts by it."""
    loop = asyncio.get_running_loop()
    stored = request if request is not None else StoredRequest("POST", "/", (), b"")
    path, _, query = stored.target.partition("?")
    return CallContext(
        call=Call(operation.provider, stored.method, path, query, stored.segments, stored.headers, stored.body),
        policy=policy,
        tree=None,
        identity=Identity(
            key=operation.key,
            account=operation.account,
            client_key=operation.client_key,
            key_source=operation.key_source,
            key_names_purchase=operation.key_names_purchase,
            provider_key=operation.provider_key,
            key_stem=None,
            fingerprint=operation.fingerprint,
            ignore=operation.ignore,
            credential=operation.credential,
            guard=operation.guard,
            account_source=operation.account_source,
        ),
        expected=ExpectedPayment(operation.money),
        shape=NO_SHAPE,
        token=token,
        deadline_mono=clock.mono(),
        still_there=lambda: False,
        request=stored,
        reply=loop.create_future(),
        finished=loop.create_future(),
        tries=0,
        journal_at=operation.updated_at,
        journal_boot=clock.boot(),
        request_available=request is not None and not operation.request_hash,
        source=RESOLVER,
        operation=operation,
    )


# --- Decision context


class HighAges(Protocol):
    """The largest ages (`durability.ages`)."""

    def high_age_s(self, at: float, provider: str) -> float: ...


# From an operation and its call to what the core asks: a decision's context, an attempt's summary, a release.


def decision_context_of(
    operation: Operation,
    policy: Policy,
    call_context: CallContext,
    clock: Clock,
    ages: HighAges | None = None,
    *,
    delay_s: float,
    last: Classification | None = None,
    held_back: bool = False,
    budget_allows: bool = True,
) -> DecisionContext:
    """What a decision about this operation depends on, now. `last` is the result of the attempt that just ended.
    `ages`: None if nothing is kept, and the call itself is all that is known."""
    age_s = call_context.journal_at + (clock.boot() - call_context.journal_boot) - _first_sent_at(operation)
    return decision_context(
        operation,
        policy,
        last,
        tries=call_context.tries,
        first_send_age_s=age_s if ages is None else first_send_age_s(operation, ages),
        delay_s=delay_s,
        time_left_s=call_context.deadline_mono - clock.mono(),
        caller_waiting=call_context.still_there(),
        circuit_refused=call_context.circuit_refused,
        request_available=call_context.request_available,
        inquired=call_context.inquiry_found_nothing,
        refused_by_limits=held_back,
        budget_allows=budget_allows,
    )


def first_send_age_s(operation: Operation, ages: HighAges) -> float:
    """How long ago its first byte may have left, by whatever clock says most."""
    return ages.high_age_s(_first_sent_at(operation), operation.provider)


def _first_sent_at(operation: Operation) -> float:
    return operation.first_sent_at if operation.first_sent_at is not None else operation.created_at


def attempt_summary(number: int, evidence: Evidence, classification: Classification, policy: Policy) -> AttemptSummary:
    """What is kept of an attempt: facts and what they were read as."""
    response = evidence.response
    status_code = response.status_code if response is not None else None
    named = response.header(policy.request_id_header) if response is not None and policy.request_id_header else None
    return AttemptSummary(
        number,
        evidence.phase.label,
        evidence.bytes_written,
        evidence.fault,
        status_code,
        evidence.detail,
        evidence.duration_s,
        evidence.reset_by_us,
        classification,
        reference_text(named),
    )
