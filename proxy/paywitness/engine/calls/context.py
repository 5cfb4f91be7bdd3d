"""CallContext: a call's request and its caller, which never change. CallProgress: how far the call is. And the input
that the core needs of both to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from paywitness.clock import Clock
from paywitness.core.bodies.tree import Tree
from paywitness.core.call import Call, Priority
from paywitness.core.circuit import CallGroup
from paywitness.core.claim import Claim
from paywitness.core.classify import ExpectedPayment, reference_text
from paywitness.core.decide import DecisionContext, decision_context
from paywitness.core.evidence import Evidence
from paywitness.core.identity import Identity
from paywitness.core.operation import AttemptSummary, Guard, Operation
from paywitness.core.payment_claims import PaymentClaim
from paywitness.core.payout import PayoutClaim
from paywitness.core.policy import Policy
from paywitness.core.problems import ANOTHER_OWNER, WHOSE_IS_UNKNOWN, Problem
from paywitness.core.recognise import RecognisedCall
from paywitness.core.record import record
from paywitness.core.reply import NO_SHAPE, ErrorShape, Reply, problem_reply
from paywitness.core.result import Classification
from paywitness.engine.calls.stored_messages import StoredRequest
from paywitness.limits.admission import Admitted
from paywitness.limits.circuits import Probe
from paywitness.randomness import Randomness

RESOLVER = "resolver"  # the name of its calls in the timeline
# How long the journal may take to write an end: five tries on Redis with their pauses, or one call to SQLite.
RECORD_TIME_MAX_S = 6.0


@dataclass(slots=True, eq=False)
class AttemptPermit:
    """The right to one attempt at a provider. It is released once; releasing it again does nothing."""

    policy: Policy
    group: CallGroup
    admitted: Admitted
    probe: Probe | None
    party: str  # the party that is held if the provider tells us to wait
    is_released: bool = False


@dataclass(slots=True, eq=False)
class CallProgress:
    """How far a call is. Its own task changes it, by the methods below, and no other code does. The deadline,
    duplicates that wait for the call and the delivery of its reply read it."""

    operation: Operation  # first the one that the call would start, then as it last stood
    finished: asyncio.Future[Reply]  # how the call ended; duplicates that wait for it get this reply
    byte_started: bool = False  # of this attempt: from here on it belongs to the operation, not to the caller
    has_sent: bool = False  # whether any attempt of this call at its present route started a byte
    sent_before: bool = False  # whether any attempt at an earlier route did
    delivery_pending: bool = False  # the end is recorded as perhaps undelivered; a second write says if it was

    @property
    def may_have_sent(self) -> bool:
        """Whether a byte of the operation may have left, by this call or by one before it."""
        return self.byte_started or bool(self.operation.doubt)

    def stands_at(self, operation: Operation) -> None:
        self.operation = operation

    def begin_attempt(self) -> None:
        self.byte_started = False

    def start_byte(self) -> None:
        self.byte_started = self.has_sent = True

    def take_other_route(self, second: Operation) -> None:
        """The call has fallen back: from here on it is the second's call, and nothing of the second was sent."""
        self.sent_before = self.sent_before or self.has_sent
        self.byte_started = self.has_sent = False
        self.operation = second

    def record_delivery(self, *, pending: bool) -> None:
        self.delivery_pending = pending


@record
class AttemptContext:
    """The input of an operation's attempts beside the operation itself. The resolver has one of these, a caller a
    `CallContext`. It never changes: a step that learns more returns a new one."""

    in_background: ClassVar[bool] = True  # no caller asked for the attempts: the resolver did
    source: ClassVar[str] = RESOLVER  # who makes the attempts, as the timeline names it

    policy: Policy
    tree: Tree  # of the request
    expected: ExpectedPayment
    shape: ErrorShape
    token: str
    deadline_mono: float
    still_there: Callable[[], bool]
    request: StoredRequest
    request_available: bool  # the first attempt's very bytes can be sent again
    priority: Priority
    progress: CallProgress

    @property
    def account_and_credential(self) -> tuple[str, str]:
        """The account of the request, and the credential that it bears."""
        return self.progress.operation.account, self.progress.operation.credential

    @property
    def may_see_reply(self) -> bool:
        """Whether the caller's credential made the operation, or may see its reply."""
        return True

    @property
    def caller_gone(self) -> bool:
        """Whether the caller has left, or has its reply already."""
        return not self.still_there()

    def outlasts_record(self, now_mono: float, record_s: float = RECORD_TIME_MAX_S) -> bool:
        """Whether the caller will still wait when a write that begins now has ended. Only such a caller may be recorded
        as one who gets the reply: at its deadline it gets a 504, even if the write is under way."""
        return not self.caller_gone and self.deadline_mono - now_mono > record_s


@record
class CallContext(AttemptContext):
    """One call that may start an operation, and its caller."""

    in_background: ClassVar[bool] = False
    source: ClassVar[str] = "caller"

    call: Call
    identity: Identity
    reply: asyncio.Future[Reply]  # the caller's reply; at the deadline it has one, even if the call is not over
    fresh: Operation  # the operation that the call would start
    holds_unstorable_data: bool  # the request holds data that must not be stored
    payment_claim: PaymentClaim  # what the call means for a payment
    payout_claim: PayoutClaim | None  # what the call means for the rules of its payouts
    parameters: Mapping[str, str]  # of its path
    owner: str | None = None  # the mark of the credential's owner, if the provider named it
    credential_accepted: bool = True  # it made the operation that its claim named, or may see its reply
    routes_left: tuple[str, ...] = ()  # the providers that it fell back from

    @property
    def may_see_reply(self) -> bool:
        return self.credential_accepted

    @property
    def account_and_credential(self) -> tuple[str, str]:
        return self.identity.account, self.identity.credential

    @property
    def caller_gone(self) -> bool:
        return self.reply.done() or not self.still_there()

    def send_reply(self, reply: Reply) -> bool:
        """Reply to the caller, unless it has its reply. Whether it gets this one."""
        is_delivered = not self.caller_gone
        if not self.reply.done():
            self.reply.set_result(reply)
        return is_delivered

    def recognised_as(self, recognised: RecognisedCall, policy: Policy) -> CallContext:
        """The same call under another identity, before anything is claimed."""
        fresh = recognised.fresh_operation(self.fresh.id, self.fresh.created_at)
        self.progress.stands_at(fresh)
        return replace(
            self,
            policy=policy,
            identity=recognised.identity,
            payment_claim=recognised.payment,
            payout_claim=recognised.payout,
            fresh=fresh,
        )

    def owned_by(self, owner: str | None) -> CallContext:
        """The same call, now that the provider has said whose its credential is."""
        return replace(self, owner=owner) if owner is not None else self

    def guarded_by(self, guard: Guard) -> CallContext:
        """The same call, now that its intent is known, before anything is claimed."""
        fresh = self.fresh.changed(guard=guard)
        self.progress.stands_at(fresh)
        return replace(self, identity=replace(self.identity, guard=guard), fresh=fresh)

    def after_payout_check(self) -> CallContext:
        """The same call, now that its payout was allowed by the address of the policy."""
        payout = self.payout_claim
        return replace(self, payout_claim=replace(payout, check_first=False) if payout is not None else None)

    def resending(self, request: StoredRequest) -> CallContext:
        """The same call, sending the bytes of the operation's first attempt again."""
        return replace(self, request=request)

    def rerouted_to(self, policy: Policy, identity: Identity, request: StoredRequest) -> CallContext:
        """The same call at another route of the same API."""
        left = (*self.routes_left, self.policy.provider)
        return replace(self, policy=policy, identity=identity, request=request, routes_left=left)

    def seen_by(self, claim: Claim) -> CallContext:
        """The same call, now that its claim has said whether its credential may see the operation."""
        if claim.credential_accepted == self.credential_accepted:
            return self
        return replace(self, credential_accepted=claim.credential_accepted)


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
    fresh = recognised.fresh_operation(randomness.operation_id(now), now)
    return CallContext(
        policy,
        recognised.tree,
        ExpectedPayment(recognised.money),
        shape,
        token,
        clock.mono() + (call.options.timeout_s or policy.timeouts.deadline_s),
        still_there,
        StoredRequest.of(call),
        request_available=True,
        priority=recognised.priority,
        progress=CallProgress(fresh, loop.create_future()),
        call=call,
        identity=recognised.identity,
        reply=loop.create_future(),
        fresh=fresh,
        holds_unstorable_data=recognised.holds_unstorable_data,
        payment_claim=recognised.payment,
        payout_claim=recognised.payout,
        parameters=recognised.parameters,
    )


def background_context(
    operation: Operation, policy: Policy, request: StoredRequest | None, token: str, clock: Clock
) -> AttemptContext:
    """The context of the resolver's attempts. Their deadline has passed, so nothing new starts by them."""
    return AttemptContext(
        policy=policy,
        tree=None,
        expected=ExpectedPayment(operation.money),
        shape=NO_SHAPE,
        token=token,
        deadline_mono=clock.mono(),
        still_there=_never,
        request=request if request is not None else _NO_REQUEST,
        request_available=request is not None and not operation.request_hash,
        priority=Priority.HIGH,
        progress=CallProgress(operation, asyncio.get_running_loop().create_future()),
    )


_NO_REQUEST = StoredRequest("POST", "/", (), b"")


def _never() -> bool:
    return False


def account_unknown(context: CallContext) -> Reply:
    """504: an operation of another credential decides the call, and it is unknown whether both have one owner. The
    reply does not name the operation."""
    provider = context.policy.provider
    return problem_reply(Problem.ACCOUNT_UNKNOWN, WHOSE_IS_UNKNOWN, shape=context.shape, provider=provider)


def another_owner(context: CallContext, why: str = ANOTHER_OWNER) -> Reply:
    """403: the provider or the policy says that the credential is of another owner than the account."""
    provider = context.policy.provider
    return problem_reply(Problem.CREDENTIAL_NOT_RECOGNISED, why, shape=context.shape, provider=provider)


# --- Decision context


class HighAges(Protocol):
    """The largest ages (`durability.ages`)."""

    def high_age_s(self, at: float, provider: str) -> float: ...


# From an operation and its call to the values that the core takes: a decision's context, an attempt's summary.


def decision_context_of(
    operation: Operation,
    policy: Policy,
    attempt_context: AttemptContext,
    clock: Clock,
    ages: HighAges,
    *,
    tries: int,
    delay_s: float = 0.0,
    last: Classification | None = None,
    held_back: bool = False,
    budget_allows: bool = True,
    circuit_refused: bool = False,
    inquired: bool = False,
) -> DecisionContext:
    """The present input of a decision about this operation. `last` is the result of the attempt that just ended,
    `tries` counts the attempts of this call. `circuit_refused`: the circuit kept the last attempt from the wire.
    `inquired`: an inquiry just found that the provider knows nothing of the operation."""
    return decision_context(
        operation,
        policy,
        last,
        tries=tries,
        first_send_age_s=first_send_age_s(operation, ages),
        delay_s=delay_s,
        time_left_s=attempt_context.deadline_mono - clock.mono(),
        caller_waiting=attempt_context.still_there(),
        circuit_refused=circuit_refused,
        request_available=attempt_context.request_available,
        inquired=inquired,
        refused_by_limits=held_back,
        budget_allows=budget_allows,
    )


def first_send_age_s(operation: Operation, ages: HighAges) -> float:
    """How long ago its first byte may have left, by the clock that gives the largest age."""
    return ages.high_age_s(_first_sent_at(operation), operation.provider)


def _first_sent_at(operation: Operation) -> float:
    return operation.first_sent_at if operation.first_sent_at is not None else operation.created_at


def attempt_summary(number: int, evidence: Evidence, classification: Classification, policy: Policy) -> AttemptSummary:
    """The stored summary of an attempt: its facts and their classification."""
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
