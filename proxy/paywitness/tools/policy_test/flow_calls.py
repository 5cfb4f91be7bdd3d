"""Calls of a flow: claimed, attempted, concluded, decided and recorded as the engine does it; replayed or refused if
the journal's plan says so.

Every attempt of a call gets the result that its step gives. Budgets and circuits allow everything. If chance decides a
wait, the longest one is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paywitness.core.claim import ClaimRequest, ClaimVerdict
from paywitness.core.classify import ExpectedPayment, read_response
from paywitness.core.consequences import WriteContext
from paywitness.core.decide import Action, Decision, decide, decision_context
from paywitness.core.evidence import LIMIT_FAULTS, Evidence, Response, WireFault
from paywitness.core.guard import is_paid
from paywitness.core.identity import credential_claim
from paywitness.core.lifecycle import Event, advance, conclusion_changes
from paywitness.core.operation import GuardKind, Operation, State
from paywitness.core.payment import Payment, ShownBalance
from paywitness.core.payment_claims import IntentHold, hold_of_payment
from paywitness.core.payment_evidence import (
    after_already_done,
    shown_balance,
    without_doubt_of_others,
)
from paywitness.core.policy import Policy, Provider
from paywitness.core.problems import Problem
from paywitness.core.provider_contract import OperationKind
from paywitness.core.recognise import RecognisedCall
from paywitness.core.reply import (
    Reply,
    blocks_replay,
    closed_reply,
    guarded_reply,
    limit_reply,
    pass_through,
    problem_reply,
    refunded_reply,
    reply_for,
    response_matches_state,
    unknown_reply,
)
from paywitness.core.result import Classification, ResultClass
from paywitness.core.retry import at_least_retry_after_s, backoff_delay_s, retry_after_of
from paywitness.engine.durability.journal_writer import change_of
from paywitness.journal.claim_answer import ClaimPlan
from paywitness.option_defaults import DEFAULTS
from paywitness.tools.policy_test.case import GivenAttempt, evidence_of, fill_response
from paywitness.tools.policy_test.flow_journal import FlowJournal
from paywitness.tools.policy_test.recognition import SENT_AT, CaseError, placeholders_of

LEASE_S = DEFAULTS.lease_s
_LONGEST_DRAW = 1.0
_TRIES_MAX = 50  # more than any policy allows, so that the loop is bounded


@dataclass(slots=True)
class FlowWorld:
    """The state that the steps of one flow share."""

    provider: Provider
    journal: FlowJournal = field(default_factory=FlowJournal)
    now: float = SENT_AT
    calls: dict[str, RecognisedCall] = field(default_factory=dict)  # by operation: for re-sends and inquiries
    responses: dict[str, Response] = field(default_factory=dict)  # by operation: for replays

    def policy_of(self, operation: Operation) -> Policy:
        return self.calls[operation.id].policy


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call."""

    reply: Reply
    operation: Operation | None  # the call's own, or the one that replies to it or refuses it
    payment: Payment | None = None  # the payment that refused it
    sent: bool = False
    classification: Classification | None = None
    decision: Decision | None = None


def run_call(
    world: FlowWorld, recognised: RecognisedCall, operation_id: str, attempt: GivenAttempt | None
) -> CallResult:
    """Claim the call, and take it to a reply. Raises CaseError if it is sent and the step gives no response."""
    fresh = recognised.fresh_operation(operation_id, world.now)
    request = ClaimRequest(
        fresh,
        operation_id,
        permitted=True,
        lease_s=LEASE_S,
        sealed_request=None,
        key_stem=recognised.identity.key_stem,
        payment=recognised.payment,
        credential=credential_claim(recognised.policy, recognised.identity),
    )
    plan = world.journal.claim(request, world.now)
    if plan.verdict is ClaimVerdict.OWNED and plan.holder is not None:
        world.calls[plan.holder.id] = recognised
        return _run_attempts(world, plan.holder, plan.payment, attempt)
    if plan.verdict is ClaimVerdict.IN_DOUBT and plan.holder is not None:
        return _resume_unknown(world, plan.holder, attempt)
    reply = _reply_to(world, plan, recognised.policy.kind)
    return CallResult(reply, plan.holder, plan.payment)


def _reply_to(world: FlowWorld, plan: ClaimPlan, kind: OperationKind) -> Reply:
    """The reply to a claim that is not owned and sends nothing."""
    if plan.verdict in {ClaimVerdict.EXCEEDS, ClaimVerdict.RESERVED}:
        return limit_reply(kind, plan.payment, plan.limit, plan.holder)
    holder = plan.holder
    if holder is None:
        raise CaseError(f"its claim is {plan.verdict}, which a flow does not support")
    match plan.verdict:
        case ClaimVerdict.REPLAY:
            return _replay(world, holder)
        case ClaimVerdict.MISMATCH:
            return problem_reply(Problem.KEY_REUSED, "The key was used for another payload.", operation=holder)
        case ClaimVerdict.REFUNDED:
            return refunded_reply(holder)
        case _:
            return guarded_reply(holder)


def _replay(world: FlowWorld, operation: Operation) -> Reply:
    if blocks_replay(operation):
        return unknown_reply(operation, sent=False)
    kept = world.responses.get(operation.id)
    return closed_reply(operation) if kept is None else pass_through(operation, kept, replayed=True)


def _resume_unknown(world: FlowWorld, operation: Operation, attempt: GivenAttempt | None) -> CallResult:
    """A duplicate of an operation with unknown outcome: the re-send that the decision allows, else 504."""
    policy = world.policy_of(operation)
    decision = decide(
        decision_context(
            operation,
            policy,
            None,
            tries=0,
            first_send_age_s=_age_s(world, operation),
            delay_s=0.0,
            time_left_s=policy.timeouts.deadline_s,
        )
    )
    if decision.action is not Action.RETRY_SAME_OPERATION:
        return CallResult(unknown_reply(operation, sent=False), operation, decision=decision)
    return _run_attempts(world, _sending_again(world, operation, Event.RESEND_RECORDED), None, attempt)


def _age_s(world: FlowWorld, operation: Operation) -> float:
    return world.now - (operation.first_sent_at if operation.first_sent_at is not None else operation.created_at)


def _sending_again(world: FlowWorld, operation: Operation, event: Event) -> Operation:
    known = WriteContext(world.now, sends_under=operation.id)
    return world.journal.record(
        change_of(operation, advance(operation, event), (event,), known, lease_s=LEASE_S), world.now
    )


def _run_attempts(
    world: FlowWorld, operation: Operation, payment: Payment | None, attempt: GivenAttempt | None
) -> CallResult:
    """Attempt until the operation ends, its outcome is unknown with nothing to try, or it is given up. `payment`: as it
    was before."""
    if attempt is None:
        raise CaseError("it was sent, and the step gives neither a response nor a fault")
    recognised = world.calls[operation.id]
    policy = recognised.policy
    began_at = world.now
    for tries in range(1, _TRIES_MAX + 1):
        evidence = _evidence(attempt, operation, policy)
        if evidence.response is None and evidence.sent:
            world.now += policy.timeouts.first_byte_s
        money = recognised.money or operation.expected_payment.money
        expected = ExpectedPayment(money, operation.sent_stamp)
        classification, tree = read_response(evidence, policy.classify, expected)
        classification = without_doubt_of_others(classification, operation, policy, payment, rolled_back=False)
        following, event, decision = _decide(world, operation, policy, evidence, classification, tries, began_at)
        shown = shown_balance(
            following,
            policy,
            classification,
            tree,
            now=world.now,
            request_tree=recognised.tree,
        )
        following, shown = after_already_done(following, shown, classification, policy, now=world.now)
        operation = _recorded(world, operation, following, event, decision, shown)
        if decision.action is not Action.RETRY_SAME_OPERATION:
            break
        world.now += decision.delay_s
        if operation.state is State.BACKOFF:
            operation = _sending_again(world, operation, Event.SEND_RECORDED)
    if evidence.response is not None and response_matches_state(operation, classification):
        world.responses[operation.id] = evidence.response
    reply = reply_for(operation, evidence.response, classification)
    return CallResult(reply, operation, None, sent=True, classification=classification, decision=decision)


def _evidence(attempt: GivenAttempt, operation: Operation, policy: Policy) -> Evidence:
    given = attempt.response
    response = fill_response(given, placeholders_of(operation, operation.reference)) if given is not None else None
    return evidence_of(GivenAttempt(response, attempt.fault, attempt.phase), policy.encoding)


def _decide(
    world: FlowWorld,
    operation: Operation,
    policy: Policy,
    evidence: Evidence,
    classification: Classification,
    tries: int,
    began_at: float,
) -> tuple[Operation, Event, Decision]:
    """The operation after the attempt, and the next action."""
    changed, event = conclusion_changes(operation, operation.attempts, classification, policy.contract)
    after = operation.changed(**changed)
    wait_s = 0.0
    if not after.state.ended:
        wait_s = backoff_delay_s(policy.retry_rule(classification.result_class), tries, _LONGEST_DRAW)
        wait_s = at_least_retry_after_s(wait_s, retry_after_of(evidence.response, 0.0), _LONGEST_DRAW)
    decision = decide(
        decision_context(
            after,
            policy,
            classification,
            tries=tries,
            first_send_age_s=_age_s(world, operation),
            delay_s=wait_s,
            time_left_s=policy.timeouts.deadline_s - (world.now - began_at),
            circuit_refused=evidence.fault is WireFault.CIRCUIT_OPEN,
            refused_by_limits=evidence.fault in LIMIT_FAULTS,
        )
    )
    match decision.action:
        case Action.MARK_TERMINAL_FAILURE | Action.FALLBACK_NEW_ATTEMPT if after.state is State.BACKOFF:
            after = advance(after, Event.GIVEN_UP)  # a flow has one provider, so there is no fallback
        case Action.SEND_TO_REVIEW if not after.state.ended:
            after = advance(after, Event.PARKED)
        case Action.RETRY_SAME_OPERATION if after.state is State.UNKNOWN:
            after = advance(after, Event.RESEND_RECORDED)
        case _:
            pass
    return after.changed(because=decision.because), event, decision


def _recorded(
    world: FlowWorld,
    before: Operation,
    following: Operation,
    event: Event,
    decision: Decision,
    shown: ShownBalance | None,
) -> Operation:
    sends_again = decision.action is Action.RETRY_SAME_OPERATION
    known = WriteContext(
        world.now,
        sends_under=before.id if sends_again else None,
        gives_back=before.id,
        no_bytes_after_at=world.now,
        reached=True,
    )
    lease_s = LEASE_S if sends_again else None
    change = change_of(
        before,
        following,
        (event,),
        known,
        lease_s=lease_s,
        because=decision.because,
        action=decision.action,
        shown=shown,
    )
    recorded = world.journal.record(change, world.now)
    release_voided_payment(world, before, recorded)
    return recorded


def release_voided_payment(world: FlowWorld, before: Operation, after: Operation) -> None:
    """Release the payment whose void has succeeded: see `ExternalEvidenceRecorder`."""
    guard = after.guard
    first_time = after.state is State.SUCCEEDED and not before.state.ended
    if after.kind is not OperationKind.VOID or not first_time or guard is None or guard.kind is not GuardKind.TARGET:
        return
    found = [one for one in world.journal.operations.values() if one.reference == guard.label]
    paid = [one for one in found if one.account == after.account and one.kind.pays and is_paid(one)]
    if len(paid) != 1:
        return
    payment = world.journal.payment(paid[0].payment)
    if payment is not None and hold_of_payment(payment) in {IntentHold.PAID, IntentHold.GIVING_BACK}:
        return
    given_back = advance(paid[0], Event.VOID_SUCCEEDED, result_class=ResultClass.REVERSED)
    world.responses.pop(given_back.id, None)
    world.journal.record(change_of(paid[0], given_back, (Event.VOID_SUCCEEDED,), WriteContext(world.now)), world.now)
