"""One case through the core's own functions, as the engine would call them, and the facts that result.

Nothing is sent, stored or waited for. If chance decides a wait, the longest one is taken. The facts have the names
under which a case expects them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paywitness.core.advice import advice_for
from paywitness.core.bodies.tree import Encoding
from paywitness.core.classify import classify, tree_of
from paywitness.core.consequences import WriteContext, consequences
from paywitness.core.decide import Action, Decision, DecisionContext, decide, decision_context
from paywitness.core.evidence import LIMIT_FAULTS, Evidence, Response, WireFault
from paywitness.core.external_evidence import EvidenceSource, conclude_external
from paywitness.core.inquiry import FoundObject as Shown
from paywitness.core.inquiry import read_inquiry, read_object
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import FindingKind, GuardKind, Operation, State
from paywitness.core.payment import Payment
from paywitness.core.payment_evidence import without_doubt_of_others
from paywitness.core.policy import Policy, Provider
from paywitness.core.reply import ErrorShape, reply_for, unknown_reply
from paywitness.core.result import Classification, ResultClass
from paywitness.core.retry import at_least_retry_after_s, backoff_delay_s, retry_after_of
from paywitness.core.template import TemplateValues
from paywitness.core.webhook_event import MatchKey, WebhookEvent, WebhookRules, object_and_rules, webhook_events_in
from paywitness.tools.policy_test.case import (
    NONE,
    Case,
    GivenAttempt,
    GivenResponse,
    Precondition,
    evidence_of,
    fill_response,
    response_of,
)
from paywitness.tools.policy_test.recognition import CaseError, RecognisedCase, recognise_case

_LONGEST_DRAW = 1.0
_UNTOUCHED_PAYMENT = Payment("", "", "")  # no other operation of ours on it is unanswered, unless `after` says so
_NO_REPLY_YET = frozenset({Action.RETRY_SAME_OPERATION, Action.FALLBACK_NEW_ATTEMPT})


@dataclass(slots=True)
class CaseResult:
    """The result of a case. `facts` holds every name that a case may expect and that applies."""

    facts: dict[str, str] = field(default_factory=dict)
    context: DecisionContext | None = None  # of the decision, if one was made


def evaluate_case(case: Case, provider: Provider) -> CaseResult:
    """Run the case. Raises CaseError if it is not possible."""
    recognised, facts = recognise_case(case.request, provider)
    result = CaseResult(facts)
    if recognised is None:
        return result
    if case.inquiry_response is not None:
        _evaluate_inquiry(recognised, case, case.inquiry_response, result)
    elif case.cancel_response is not None:
        _evaluate_cancel(recognised, case, case.cancel_response, result)
    elif case.webhook_event is not None:
        _evaluate_webhook_event(recognised, case, case.webhook_event, provider.webhook_rules, result)
    else:
        _evaluate_attempt(recognised, case, result)
    return result


# --- Attempts


def _evaluate_attempt(recognised: RecognisedCase, case: Case, result: CaseResult) -> None:
    """Conclude and decide the end of an attempt. Without one, decide about a duplicate of an operation with unknown
    outcome."""
    policy = recognised.policy
    before = operation = _operation_before(recognised, case)
    evidence = _evidence(case.attempt, recognised) if case.attempt is not None else None
    classification: Classification | None = None
    if evidence is not None:
        classification = classify(evidence, policy.classify, recognised.operation.expected_payment)
        classification = without_doubt_of_others(
            classification, operation, policy, _UNTOUCHED_PAYMENT, rolled_back=False
        )
        operation, _ = conclude(operation, operation.attempts, classification, policy.contract)
        result.facts |= _classification_facts(classification)
    elif operation.state is not State.UNKNOWN:
        raise CaseError(f"a repeat is decided only if the outcome is unknown, and 'after' leaves it {operation.state}")
    result.context = case_decision_context(policy, operation, case.precondition, evidence, classification)
    decision = decide(result.context)
    followed = _after_decision(before, operation, decision)
    result.facts |= {"action": decision.action, "because": decision.because, **_state_facts(followed)}
    result.facts |= _reply_facts(followed, decision, policy, evidence, classification)


def _operation_before(recognised: RecognisedCase, case: Case) -> Operation:
    """The operation before the case's own evidence: `after` is applied, and an attempt is under way if the case has
    one."""
    policy, precondition = recognised.policy, case.precondition
    operation = advance(recognised.operation, Event.SEND_RECORDED)
    if precondition.attempt is not None:
        earlier = classify(
            _evidence(precondition.attempt, recognised), policy.classify, recognised.operation.expected_payment
        )
        operation, _ = conclude(operation, 1, earlier, policy.contract)
        if case.attempt is not None:
            again = {State.UNKNOWN: Event.RESEND_RECORDED, State.BACKOFF: Event.SEND_RECORDED}.get(operation.state)
            if again is None:
                raise CaseError(f"no attempt can follow, because 'after' leaves the operation {operation.state}")
            operation = advance(operation, again)
    elif case.attempt is None:
        # An inquiry or an event comes: the attempt's response was lost.
        lost = Classification.of(ResultClass.NETWORK_READ_TIMEOUT, "answer_timed_out", lost=True)
        operation, _ = conclude(operation, 1, lost, policy.contract)
    return operation.changed(reference=precondition.reference or operation.reference)


def _evidence(seen: GivenAttempt, recognised: RecognisedCase) -> Evidence:
    response = fill_response(seen.response, recognised.placeholders()) if seen.response is not None else None
    return evidence_of(GivenAttempt(response, seen.fault, seen.phase), recognised.policy.encoding)


def case_decision_context(
    policy: Policy,
    operation: Operation,
    precondition: Precondition,
    evidence: Evidence | None,
    last: Classification | None,
) -> DecisionContext:
    """The engine's input for the decision. An age beyond the deadline means a duplicate, which has its own deadline."""
    age_s, deadline_s = precondition.age_s or 0.0, policy.timeouts.deadline_s
    same_call = last is not None and age_s < deadline_s
    tries = operation.attempts if same_call else 0 if last is None else 1
    tries = precondition.tries if precondition.tries is not None else tries
    fault = evidence.fault if evidence is not None else None
    return decision_context(
        operation,
        policy,
        last,
        tries=tries,
        first_send_age_s=age_s,
        delay_s=_wait_s(policy, operation, evidence, last, tries),
        time_left_s=0.0 if precondition.background else deadline_s - age_s if same_call else deadline_s,
        circuit_refused=fault is WireFault.CIRCUIT_OPEN,
        refused_by_limits=fault in LIMIT_FAULTS,
    )


def _wait_s(
    policy: Policy, operation: Operation, evidence: Evidence | None, last: Classification | None, tries: int
) -> float:
    if evidence is None or last is None or operation.state.ended:
        return 0.0
    wait = backoff_delay_s(policy.retry_rule(last.result_class), tries, _LONGEST_DRAW)
    return at_least_retry_after_s(wait, retry_after_of(evidence.response, 0.0), _LONGEST_DRAW)


def _after_decision(before: Operation, after: Operation, decision: Decision) -> Operation:
    """The operation after the decision. Its times do not matter."""
    if decision.action is Action.MARK_TERMINAL_FAILURE and after.state is State.BACKOFF:
        after = advance(after, Event.GIVEN_UP)
    elif decision.action is Action.SEND_TO_REVIEW and not after.state.ended:
        after = advance(after, Event.PARKED)
    return consequences(before, after.changed(because=decision.because), WriteContext(now=0.0)).operation


def _reply_facts(
    operation: Operation,
    decision: Decision,
    policy: Policy,
    evidence: Evidence | None,
    classification: Classification | None,
) -> dict[str, str]:
    """The reply that the caller gets, if it gets one yet."""
    if decision.action in _NO_REPLY_YET:
        return {"status": NONE, "problem": NONE}
    shape = ErrorShape(policy.problem, policy.give_up_headers)
    if evidence is None or classification is None:
        reply = unknown_reply(operation, shape, sent=False)
    else:
        reply = reply_for(operation, evidence.response, classification, shape)
    return {"status": str(reply.status_code), "problem": reply.problem or NONE, "outcome": reply.outcome}


# --- External evidence


def _evaluate_inquiry(recognised: RecognisedCase, case: Case, given: GivenResponse, result: CaseResult) -> None:
    operation, policy = _operation_before(recognised, case), recognised.policy
    found = recognised.recognised
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in found.call.headers}
    values = TemplateValues(operation, found.parameters, found.tree, headers)
    inquiry = next((one for one in policy.inquiries if one.target(values) is not None), None)
    if inquiry is None:
        raise CaseError(f"{policy.operation} has no 'ask' that can be filled in")
    evidence = evidence_of(
        GivenAttempt(fill_response(given, recognised.placeholders(operation.reference))), policy.encoding
    )
    _apply_external_evidence(
        read_inquiry(inquiry, evidence, policy.classify, recognised.operation.expected_payment, values),
        EvidenceSource.INQUIRY,
        operation,
        policy,
        result,
    )


def _evaluate_cancel(recognised: RecognisedCase, case: Case, given: GivenResponse, result: CaseResult) -> None:
    operation, policy = _operation_before(recognised, case).changed(cancel_sent=True), recognised.policy
    if policy.cancel is None:
        raise CaseError(f"{policy.operation} has no 'cancel'")
    response = response_of(fill_response(given, recognised.placeholders(operation.reference)), policy.encoding)
    tree, readable = tree_of(response, policy.encoding)
    if not readable or tree in (None, {}, []):
        result.facts |= {"found": FindingKind.MISSED, **_state_facts(operation)}  # an empty success shows nothing
        return
    shown = read_object(
        "cancel", policy.cancel.read, policy.classify, recognised.operation.expected_payment, response, tree
    )
    _apply_external_evidence(shown, EvidenceSource.CANCEL, operation, policy, result)


def _evaluate_webhook_event(
    recognised: RecognisedCase, case: Case, given: GivenResponse, rules: WebhookRules | None, result: CaseResult
) -> None:
    operation, policy = _operation_before(recognised, case), recognised.policy
    if rules is None:
        raise CaseError("the policy has no 'webhook'")
    delivery = response_of(fill_response(given, recognised.placeholders(operation.reference)), Encoding.JSON)
    webhook_events = webhook_events_in(rules, tree_of(delivery, policy.encoding)[0], delivery.headers)
    matched_by = _matched_by(webhook_events[0], operation) if len(webhook_events) == 1 else None
    result.facts |= {"found": NONE, "found_by": matched_by or NONE, **_state_facts(operation)}
    if matched_by is None:
        return
    if rules.hint:  # a hint is no evidence: the sidecar inquires
        result.facts |= {"action": Action.STATUS_INQUIRY} if policy.inquiries else {}
        return
    event = webhook_events[0].payload
    shown, rows = object_and_rules(rules, event)
    signed_response = Response(200, b"", delivery.headers, b"")
    seen = read_object(
        "webhook",
        rows,
        policy.classify,
        recognised.operation.expected_payment,
        signed_response,
        shown,
        event=event,
        event_rows=rules.read,
    )
    _apply_external_evidence(seen, EvidenceSource.WEBHOOK, operation, policy, result)


def _matched_by(webhook_event: WebhookEvent, operation: Operation) -> MatchKey | None:
    """The key by which the event names the operation of this case."""
    guard = operation.guard
    known = {
        MatchKey.OPERATION_ID: operation.stamp,
        MatchKey.PROVIDER_KEY: operation.provider_key,
        MatchKey.CLIENT_KEY: operation.client_key,
        MatchKey.REFERENCE: operation.reference,
        MatchKey.INTENT: guard.label if guard is not None and guard.kind is GuardKind.INTENT else None,
    }
    return next((matched_by for matched_by, value in webhook_event.match_values if value == known[matched_by]), None)


def _apply_external_evidence(
    seen: Shown, source: EvidenceSource, operation: Operation, policy: Policy, result: CaseResult
) -> None:
    """Apply the result of an inquiry, a cancel or an event, and note the state that follows."""
    finding = seen.finding
    result.facts["found"] = finding.kind
    if finding.classification is not None:
        result.facts |= _classification_facts(finding.classification)
        # The object may belong to an earlier call. We take it as ours, because a case is about one call. A flow waits
        # for `settle`.
        operation, _ = conclude_external(operation, source, finding.classification, policy.contract, settled=False)
    result.facts |= _state_facts(operation)


def _classification_facts(classification: Classification) -> dict[str, str]:
    observed = classification.shadow_match.rule if classification.shadow_match is not None else NONE
    read = {"class": classification.result_class, "effect": classification.effect, "row": classification.rule}
    return {**read, "observed": observed}


def _state_facts(operation: Operation) -> dict[str, str]:
    return {
        "state": operation.state,
        "outcome": operation.outcome,
        "reference": operation.reference or NONE,
        "advice": advice_for(operation),
    }
