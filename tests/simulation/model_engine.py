"""The model's engine: the order in which the engine calls the core over one operation, without a clock or a network.

Each method is one write to the journal, from the operation as it stands to the operation as it then stands. What the
core and the journal's steps say is theirs, called as they are: `Core` names the functions, so that a planted fault is
one function in place of another. Only the order of the calls is told here again, from `engine.carry`, `settling`,
`late`, `outside`, `resolver` and `records`; their names stand at each method.

Time stands still at NOW. When time passes, everything that was written moves into the past instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from paywitness.core.claim import ClaimRequest, drop_lease
from paywitness.core.classify import ClassifyRules, ResponseRule, classify
from paywitness.core.consequences import Consequences, WriteContext, consequences
from paywitness.core.decide import Action, Decision, DecisionContext, decide
from paywitness.core.errors import IllegalTransition
from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.external_evidence import EvidenceSource, conclude_external
from paywitness.core.inquiry import AbsenceProof, after_miss, is_settled, next_inquiry_at
from paywitness.core.lifecycle import PENDINGS, REVERSALS, SUCCESSES, Event, advance, conclude
from paywitness.core.operation import Operation, Outcome, State
from paywitness.core.policy import Policy, ResolutionRules
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import ProviderContract
from paywitness.core.reply import reply_for
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.core.retry import RetryRule
from paywitness.engine.calls.context import decision_context_of
from paywitness.journal.base import OperationChange
from paywitness.journal.claim_answer import ClaimPlan
from paywitness.journal.claim_plan import plan_claim
from paywitness.journal.transitions import lease_end_write, lease_write, record_write
from tests.core.samples import answered, operation, policy, response, unanswered

NOW = 1_000_000.0
LEASE_S = 30.0
SETTLE_S = 600.0
MISSES = 2  # that prove absence, the look-up's lag being part of SETTLE_S
BACKOFF_S = 0.1
DEADLINE_S = 20.0

_ROWS = (
    ResponseRule("answers[0]", ResultClass.SUCCEEDED, status_codes=frozenset({200})),
    ResponseRule("answers[1]", ResultClass.PENDING, status_codes=frozenset({202})),
    ResponseRule("answers[2]", ResultClass.REQUIRES_ACTION, status_codes=frozenset({303})),
    ResponseRule("answers[3]", ResultClass.IDEMPOTENCY_IN_FLIGHT, status_codes=frozenset({409})),
)
_RULES = ClassifyRules(answers=_ROWS)
# What one attempt can come to, and the evidence of it.
EVIDENCE: dict[str, Evidence] = {
    "success": answered(response(200, {})),
    "pending": answered(response(202, {})),
    "action": answered(response(303, {})),
    "decline": answered(response(402, {})),
    "error": answered(response(500, {})),
    "gateway error": answered(response(502, b"<html>")),
    "refusal": answered(response(429, {})),
    "conflict": answered(response(409, {})),
    "lost": unanswered(NetworkPhase.AWAITING, WireFault.FIRST_BYTE_TIMEOUT, 100),
    "not sent": unanswered(NetworkPhase.CONNECTING, WireFault.CONNECT_REFUSED),
}
READ = {word: classify(evidence, _RULES) for word, evidence in EVIDENCE.items()}
_ABANDONED = Classification.of(ResultClass.UNKNOWN_OUTCOME, "abandoned", lost=True)
# What an inquiry or an event can say.
SHOWN = {
    "success": Classification.of(ResultClass.SUCCEEDED, "model"),
    "pending": Classification.of(ResultClass.PENDING, "model"),
    "action": Classification.of(ResultClass.REQUIRES_ACTION, "model"),
    "decline": Classification.of(ResultClass.ISSUER_HARD_DECLINE, "model"),
    "absent": Classification.of(ResultClass.ABSENT, "model"),
}
_OF_ANY_ATTEMPT = frozenset({*SUCCESSES, *PENDINGS, *REVERSALS})
_PROOF = AbsenceProof(MISSES, 0.0, SETTLE_S)


def lasts(held: Operation, token: str, lapsed: bool) -> bool:
    """Whether a holder may write its first byte (`engine.leases`). Its own idea of the lease ends before the journal's,
    and is not made longer by others."""
    return not lapsed and held.lease is not None and held.lease.token == token and held.lease.until_at > NOW


def in_window(held: Operation, contract: ProviderContract) -> bool:
    """Whether the provider still knows the key when the first byte of a re-send would leave (`engine.attempt`)."""
    first_sent_at = held.first_sent_at if held.first_sent_at is not None else held.created_at
    return NOW - first_sent_at < contract.resend_until_s


@dataclass(frozen=True)
class Bounds:
    """How much may happen. What these leave out, a larger run lets in."""

    sidecars: int = 2
    attempts: int = 2
    repeats: int = 1
    generations: int = 1  # operations under the key: a repeat starts the next one after an end that released it
    crashes: int = 1
    askers: int = 1  # sidecars with an inquiry at the same time
    looks: int = 1  # that find nothing, before a person is asked
    slow_inquiries: bool = False  # time may pass between an inquiry's answer and its record
    late_answers: bool = False  # who timed out listens on
    rare_answers: bool = False  # a gateway's error page, a conflict with a twin
    long_pauses: bool = False  # a day may pass between the decision to send again and its record


@dataclass(frozen=True)
class Core:
    """The functions of the core, as the engine uses them."""

    advance: Callable[..., Operation] = advance
    conclude: Callable[..., tuple[Operation, Event]] = conclude
    conclude_outside: Callable[..., tuple[Operation, Event | None]] = conclude_external
    decide: Callable[[DecisionContext], Decision] = decide
    drop_lease: Callable[[Operation, float], Operation] = drop_lease
    consequences: Callable[[Operation, Operation, WriteContext], Consequences] = consequences
    after_miss: Callable[[Operation, AbsenceProof, float], tuple[Operation, bool]] = after_miss
    is_settled: Callable[[Operation, float, float], bool] = is_settled
    lasts: Callable[[Operation, str, bool], bool] = lasts
    in_window: Callable[[Operation, ProviderContract], bool] = in_window
    compares: bool = True  # a step over an operation that others moved on is not taken
    inquiry_names_attempts: bool = True  # one that was asked before the last send does not deny that
    schedule_end: Event = Event.SCHEDULE_RAN_OUT


@dataclass(frozen=True)
class Promise:
    """What a caller is told of the money, where that must stay true for ever. Neither: nothing is promised."""

    paid: bool = False
    without_effect: bool = False


NOTHING = Promise()


def promise_of(told: Operation) -> Promise:
    """What a repeat is told of an operation that stands (`engine.repeats.replay`)."""
    if told.incident is not None:
        return NOTHING
    return _promise(told.outcome)


def _promise(outcome: Outcome) -> Promise:
    return Promise(
        paid=outcome is Outcome.SUCCEEDED,
        without_effect=outcome in {Outcome.FAILED, Outcome.DECLINED, Outcome.NOT_SENT, Outcome.ABSENT},
    )


@dataclass(frozen=True)
class Settled:
    """What the end of an attempt comes to: the operation, what its holder does next, and what its caller is told."""

    operation: Operation
    action: Action
    promise: Promise


class ModelEngine:
    """The engine over one contract."""

    def __init__(self, contract: ProviderContract, core: Core, bounds: Bounds) -> None:
        self.contract = contract
        self.core = core
        self.schedule_s = (2.0,) * bounds.looks
        resolve = ResolutionRules(settle_s=SETTLE_S, schedule_s=self.schedule_s)
        retry = RetryRule(attempts=bounds.attempts)
        self.policy: Policy = policy(contract=contract, resolve=resolve, retry_default=retry)

    # -- the caller's errand

    def claim(self, existing: Operation | None, token: str) -> ClaimPlan:
        """`journal.claiming`, an expired lease having been acted upon."""
        fresh = operation(id="op_01" if existing is None else "op_02", request_hash="", created_at=NOW, updated_at=NOW)
        request = ClaimRequest(fresh, token, permitted=True, lease_s=LEASE_S, sealed_request=b"")
        return plan_claim(request, NOW, cast(Any, _OneKeyLookups(existing)))

    def settled(self, current: Operation, attempt: int, word: str, token: str, *, waits: bool) -> Settled:
        """`settling.settle`: conclude the attempt, decide, follow."""
        read = READ[word]
        after, event = self.core.conclude(current, attempt, read, self.contract)
        if after.attempt_under_way and not after.state.ended:
            action = Action.STOP
        else:
            action = self._decided(after, waits=waits, tries=after.attempts, last=read)
        following, events = self._follow(after, action)
        context = WriteContext(
            NOW,
            sends_under=token if action is Action.RETRY_SAME_OPERATION else None,
            gives_back=token,
            check_at=NOW if action in _CHECKING_ACTIONS else None,
            no_bytes_after_at=NOW,
            reached=waits,
        )
        stands = self._written(current, following, (event, *events), context)
        promise = NOTHING
        if action is not Action.RETRY_SAME_OPERATION:
            promise = self.told(stands, word)
        return Settled(stands, action, promise)

    def told(self, stands: Operation, word: str) -> Promise:
        """`core.reply`: what the caller of the attempt that came to this is told."""
        reply = reply_for(stands, EVIDENCE[word].response, READ[word])
        if reply.problem is Problem.NOT_SENT:
            return Promise(without_effect=True)
        return _promise(reply.outcome)

    def _decided(
        self,
        stands: Operation,
        *,
        waits: bool,
        tries: int = 0,
        last: Classification | None = None,
        asked_in_vain: bool = False,
    ) -> Action:
        call_context = SimpleNamespace(
            deadline_mono=DEADLINE_S if waits else 0.0,
            still_there=lambda: waits,
            request_available=True,
        )
        clock, ages = SimpleNamespace(mono=lambda: 0.0), SimpleNamespace(high_age_s=lambda at, provider: NOW - at)
        delay_s = BACKOFF_S if last is not None and not stands.state.ended else 0.0
        context = decision_context_of(
            stands,
            self.policy,
            cast(Any, call_context),
            cast(Any, clock),
            cast(Any, ages),
            tries=tries,
            delay_s=delay_s,
            last=last,
            inquired=asked_in_vain,
        )
        return self.core.decide(context).action

    def _follow(self, after: Operation, action: Action) -> tuple[Operation, tuple[Event, ...]]:
        match action:
            case Action.MARK_TERMINAL_FAILURE if after.state is State.BACKOFF:
                event = Event.GIVEN_UP
            case Action.SEND_TO_REVIEW if not after.state.ended:
                event = Event.PARKED
            case Action.RETRY_SAME_OPERATION if after.state is State.UNKNOWN:
                event = Event.RESEND_RECORDED
            case _:
                return after, ()
        return self.core.advance(after, event), (event,)

    def next_turn(self, held: Operation) -> Operation:
        """`carry.next_turn`: SENDING again after a wait."""
        again = self.core.advance(held, Event.SEND_RECORDED)
        context = WriteContext(NOW, sends_under=_token(held))
        return self._written(held, again, (Event.SEND_RECORDED,), context)

    def given_up(self, held: Operation) -> Operation:
        """`carry.give_up`: nothing was done, and nothing will be."""
        ended = self.core.advance(held, Event.GIVEN_UP)
        return self._written(held, ended, (Event.GIVEN_UP,), WriteContext(NOW, gives_back=_token(held)))

    def may_resume(self, claimed: Operation) -> bool:
        """`carry.resume`: whether a repeat of something in doubt sends it again."""
        return self._decided(claimed, waits=True) is Action.RETRY_SAME_OPERATION

    def resent(self, held: Operation, token: str, *, by_resolver: bool) -> Operation:
        """`carry.resume` and `resolver._resend`: the same bytes under the same key, in doubt from its record on."""
        resent = self.core.advance(held, Event.RESEND_RECORDED)
        resent = resent.changed(checks_done=held.checks_done + (1 if by_resolver else 0))
        return self._written(held, resent, (Event.RESEND_RECORDED,), WriteContext(NOW, sends_under=token))

    def harvested(self, current: Operation, attempt: int, word: str) -> Operation:
        """`late.apply`: an answer that came after its attempt had timed out."""
        after, event = self.core.conclude(current, attempt, READ[word], self.contract)
        events: tuple[Event, ...] = (event,)
        if after.state is State.BACKOFF and current.state is State.SENDING:
            after, events = self.core.advance(after, Event.GIVEN_UP), (event, Event.GIVEN_UP)
        context = WriteContext(NOW, check_doubt_now=True, no_bytes_after_at=NOW, reached=False)
        return self._written(current, after, events, context)

    def abandoned(self, current: Operation, token: str, *, byte_started: bool) -> Operation | None:
        """`records.write_down_abandoned`: a sidecar that is shut down. None: it is not its to give up any more."""
        if current.lease is None or current.lease.token != token:
            return None
        try:
            after = self._given_up_by_force(current, byte_started=byte_started)
        except IllegalTransition:
            return None  # it was overtaken: its lease runs out
        context = WriteContext(NOW, gives_back=token, check_doubt_now=True, no_bytes_after_at=NOW, reached=False)
        return self._written(current, after, (), context)

    def _given_up_by_force(self, current: Operation, *, byte_started: bool) -> Operation:
        if current.state is State.BACKOFF:
            return self.core.advance(current, Event.GIVEN_UP)
        if byte_started or current.doubt:
            return self.core.conclude(current, current.attempts, _ABANDONED, self.contract)[0]
        waiting = self.core.advance(current, Event.NO_EFFECT_SEEN, current.attempts)
        waiting = waiting.changed(result_class=ResultClass.NETWORK_CONNECT_FAILURE, effect=Effect.NONE)
        return self.core.advance(waiting, Event.GIVEN_UP)

    # -- leases

    def expired(self, current: Operation) -> Operation:
        """`recovery`: nobody holds it any more."""
        return lease_end_write(current, self.core.drop_lease(current, NOW), NOW).operation

    # -- the resolver

    def taken(self, current: Operation, token: str) -> Operation:
        """`journal.take_due`."""
        return lease_write(current, token, LEASE_S, NOW).operation

    def to_do(self, held: Operation, *, asked_in_vain: bool = False) -> Action:
        """`resolver.resolve`: what a look at an operation in the background comes to."""
        return self._decided(held, waits=False, asked_in_vain=asked_in_vain)

    def is_absent(self, held: Operation, asked_at: float) -> bool:
        """`resolver._ask`: whether this miss, asked at that time, proves that it never arrived."""
        return self.may_be_missed(held) and self.core.after_miss(held, _PROOF, asked_at)[1]

    def may_be_missed(self, stands: Operation) -> bool:
        return stands.state.in_doubt and bool(stands.doubt)

    def looked(self, current: Operation, token: str, missed_at: float | None, attempts: int) -> Operation:
        """`resolver._look_again`: nothing ended it. `missed_at`: when it was asked, where nothing was found."""
        after = current
        proof = _PROOF if missed_at is not None and self.may_be_missed(current) else None
        if proof is not None and missed_at is not None and current.attempts == attempts:
            after, _ = self.core.after_miss(current, proof, missed_at)
        after = after.changed(checks_done=after.checks_done + (0 if after.misses > current.misses else 1))
        due_at = next_inquiry_at(after, self.schedule_s, NOW, 1.0, proof=proof)
        last_check = current.state.ended or current.state in {State.REQUIRES_REVIEW, State.REQUIRES_ACTION}
        if due_at is None and not last_check:
            after = self.core.advance(after, self.core.schedule_end)
        context = WriteContext(NOW, gives_back=token, check_at=due_at, last_check=last_check)
        return self._written(current, after, (), context)

    def parked(self, current: Operation, token: str) -> Operation:
        """`resolver._park`."""
        after = current
        if current.state in {State.UNKNOWN, State.PENDING}:
            after = self.core.advance(current, Event.PARKED)
        return self._written(current, after, (), WriteContext(NOW, gives_back=token, last_check=True))

    def held_back(self, current: Operation, token: str) -> Operation:
        """`resolver._later`: our own limits hold it back."""
        context = WriteContext(NOW, gives_back=token, check_at=NOW if _token(current) == token else None)
        return self._written(current, current, (), context)

    # -- evidence from outside

    def shown(
        self,
        current: Operation,
        source: EvidenceSource,
        word: str,
        holding: str | None = None,
        asked: int | None = None,
    ) -> tuple[Operation, Event | None]:
        """`outside.apply`. `asked`: how many attempts there were when it was asked. The same operation: not written."""
        settled = self.core.is_settled(current, SETTLE_S, NOW)
        after, event = self.core.conclude_outside(current, source, SHOWN[word], self.contract, settled=settled)
        late = source is EvidenceSource.INQUIRY and current.attempts != asked and event not in _OF_ANY_ATTEMPT
        if event is None or (late and self.core.inquiry_names_attempts):
            return current, None
        known = ("state", "doubt", "result_class", "incident")
        if word != "absent" and all(getattr(after, name) == getattr(current, name) for name in known):
            return current, None
        return self._written(current, after, (event,), WriteContext(NOW, gives_back=holding, reached=False)), event

    def _written(
        self, current: Operation, after: Operation, events: tuple[Event, ...], context: WriteContext
    ) -> Operation:
        """`journal_writer.change_of` and `journal.record`."""
        implied = self.core.consequences(current, after, context)
        change = OperationChange(implied.operation, events, lease_s=LEASE_S if implied.renews_lease else None)
        return record_write(change, current.lease, NOW).operation


_CHECKING_ACTIONS = frozenset(
    {Action.STATUS_INQUIRY, Action.WAIT_FOR_WEBHOOK, Action.SCHEDULE_RETRY, Action.ASK_CUSTOMER_ACTION}
)


def _token(held: Operation) -> str | None:
    return held.lease.token if held.lease is not None else None


@dataclass(frozen=True)
class _OneKeyLookups:
    """A journal with one key."""

    existing: Operation | None

    def newest(self, key: str) -> Operation | None:
        return self.existing

    def by_id(self, operation_id: str) -> Operation | None:
        return None

    def disputed(self, key: str) -> Operation | None:
        # An earlier generation ended without effect; the model has two at most.
        return self.existing if self.existing is not None and self.existing.incident is not None else None

    def alias(self, key: str) -> None:
        return None

    def tombstone(self, key: str) -> None:
        return None

    def guarded(self, guard: str) -> tuple[Operation, ...]:
        return ()
