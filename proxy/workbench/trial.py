"""A trial: one case through the core's own functions, as the engine would call them; what came of it, fact by fact.

Nothing is sent, stored or waited for. Where chance would have a say, the longest wait is taken. The facts have the
names under which a case expects them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.core.backoff import delay_s, no_earlier_than
from proxy.core.body import Encoding
from proxy.core.classify import classify, tree_of
from proxy.core.decide import Action, Context, Decision, decide
from proxy.core.evidence import HELD_BACK, Evidence, Response, WireFault
from proxy.core.inquiry import Seen as Shown
from proxy.core.inquiry import read_inquiry, read_object
from proxy.core.lifecycle import Event, advance, conclude
from proxy.core.notice import Finder, Notice, NoticeRules, notices_in, object_and_rows
from proxy.core.operation import Found, GuardKind, Operation, State
from proxy.core.outside import Source, conclude_outside
from proxy.core.policy import Fallback, FallbackCause, Policy, Provider
from proxy.core.reading import DENIALS, Classification, Effect, Reading
from proxy.core.reply import ErrorShape, reply_for, unknown
from proxy.core.retry_after import retry_after_s
from proxy.core.template import Values
from proxy.workbench.case import Before, Case, GivenResponse, Seen, filled_response
from proxy.workbench.expectations import NONE
from proxy.workbench.given_bytes import evidence_of, response_of
from proxy.workbench.recognition import CaseError, Recognised, recognise

_LONGEST_DRAW = 1.0
_NOES = DENIALS | {Reading.REQUIRES_ACTION}
_TELLS_NOBODY_YET = frozenset({Action.RETRY_SAME_OPERATION, Action.FALLBACK_NEW_ATTEMPT})


@dataclass(slots=True)
class Came:
    """What came of a case. `facts` has every name a case may expect that applies to it."""

    facts: dict[str, str] = field(default_factory=dict)
    context: Context | None = None  # of the decision, where one was made


def tried(case: Case, provider: Provider) -> Came:
    """Run the case. Raises CaseError where it cannot be."""
    recognised, facts = recognise(case.request, provider)
    came = Came(facts)
    if recognised is None:
        return came
    if case.asked is not None:
        _asked(recognised, case, case.asked, came)
    elif case.cancelled is not None:
        _cancelled(recognised, case, case.cancelled, came)
    elif case.event is not None:
        _told_by_event(recognised, case, case.event, provider.notices, came)
    else:
        _attempted(recognised, case, came)
    return came


# --- an attempt of ours


def _attempted(recognised: Recognised, case: Case, came: Came) -> None:
    """The end of an attempt, or without one the repeat of an operation in doubt: concluded, decided, answered."""
    policy = recognised.policy
    operation = _stood(recognised, case)
    evidence = _evidence(case.seen, recognised) if case.seen is not None else None
    classification: Classification | None = None
    if evidence is not None:
        classification = classify(evidence, policy.classify, recognised.asked)
        operation, _ = conclude(operation, operation.attempts, classification, policy.contract)
        came.facts |= _read(classification)
    elif operation.state is not State.UNKNOWN:
        raise CaseError(f"a repeat is decided only of what is in doubt, and 'after' leaves it {operation.state}")
    came.context = supposed_context(policy, operation, case.before, evidence, classification)
    decision = decide(came.context)
    followed = _followed(operation, decision)
    came.facts |= {"action": decision.action, "because": decision.because, **_stands(followed)}
    came.facts |= _answered(followed, decision, policy, evidence, classification)


def _stood(recognised: Recognised, case: Case) -> Operation:
    """The operation when the case's own evidence comes: after what was before, and with an attempt under way for it."""
    policy, before = recognised.policy, case.before
    operation = advance(recognised.operation, Event.SEND_RECORDED)
    if before.seen is not None:
        earlier = classify(_evidence(before.seen, recognised), policy.classify, recognised.asked)
        operation, _ = conclude(operation, 1, earlier, policy.contract)
        if case.seen is not None:
            again = {State.UNKNOWN: Event.RESEND_RECORDED, State.BACKOFF: Event.SEND_RECORDED}.get(operation.state)
            if again is None:
                raise CaseError(f"no attempt follows one that left the operation {operation.state}")
            operation = advance(operation, again)
    elif case.seen is None:
        # Asked about, or told by an event: the answer to the attempt was lost.
        lost = Classification.of(Reading.NETWORK_READ_TIMEOUT, "answer_timed_out", lost=True)
        operation, _ = conclude(operation, 1, lost, policy.contract)
    return operation.changed(reference=before.reference or operation.reference)


def _evidence(seen: Seen, recognised: Recognised) -> Evidence:
    response = filled_response(seen.response, recognised.names()) if seen.response is not None else None
    return evidence_of(Seen(response, seen.fault, seen.phase), recognised.policy.encoding)


def supposed_context(
    policy: Policy, operation: Operation, before: Before, evidence: Evidence | None, last: Classification | None
) -> Context:
    """What the engine would give to the decision. An age past the deadline is a repeat's: it has a time of its own."""
    reading = last.reading if last is not None else operation.reading or Reading.UNKNOWN_OUTCOME
    effect = last.effect if last is not None else operation.effect or Effect.POSSIBLE
    if operation.state.in_doubt and operation.effect is Effect.NONE and operation.reading in _NOES:
        reading, effect = operation.reading, operation.effect
    age_s, deadline_s = before.age_s or 0.0, policy.timeouts.deadline_s
    same_call = last is not None and age_s < deadline_s
    tries = operation.attempts if same_call else 0 if last is None else 1
    tries = before.tries if before.tries is not None else tries
    fallback = _fallback(policy, reading, evidence.fault if evidence is not None else None)
    return Context(
        kind=policy.kind,
        state=operation.state,
        contract=policy.contract,
        reading=reading,
        effect=effect,
        tries=tries,
        tries_max=policy.retry_rule(reading).attempts,
        first_send_age_s=age_s,
        delay_s=_wait_s(policy, operation, evidence, last, tries),
        time_left_s=0.0 if before.background else deadline_s - age_s if same_call else deadline_s,
        background=before.background,
        resend_for_s=policy.resolve.resend_for_s,
        answer_seen_in_doubt=bool(operation.seen),
        guarded=operation.guard is not None and operation.guard.kind is GuardKind.INTENT,
        fallback_to=fallback.to if fallback is not None else None,
        enough_tries_here=fallback is not None and fallback.after is not None and tries >= fallback.after,
        held_back=evidence is not None and evidence.fault in HELD_BACK,
    )


_CAUSES = {
    Reading.NETWORK_CONNECT_FAILURE: FallbackCause.NOT_SENT,
    Reading.RATE_LIMITED: FallbackCause.RATE_LIMITED,
}


def _fallback(policy: Policy, reading: Reading, fault: WireFault | None) -> Fallback | None:
    cause = FallbackCause.CIRCUIT_OPEN if fault is WireFault.CIRCUIT_OPEN else _CAUSES.get(reading)
    return next((fallback for fallback in policy.fallbacks if cause in fallback.when), None)


def _wait_s(
    policy: Policy, operation: Operation, evidence: Evidence | None, last: Classification | None, tries: int
) -> float:
    if evidence is None or last is None or operation.state.ended:
        return 0.0
    wait = delay_s(policy.retry_rule(last.reading), tries, _LONGEST_DRAW)
    return no_earlier_than(wait, retry_after_s(evidence.response, 0.0), _LONGEST_DRAW)


def _followed(after: Operation, decision: Decision) -> Operation:
    """The operation as the decision leaves it."""
    if decision.action is Action.MARK_TERMINAL_FAILURE and after.state is State.BACKOFF:
        after = advance(after, Event.GIVEN_UP)
    elif decision.action is Action.SEND_TO_REVIEW and not after.state.ended:
        after = advance(after, Event.PARKED)
    released = after.state.ended and after.effect is Effect.NONE and after.reading not in _NOES
    return after.changed(because=decision.because, released=released)


def _answered(
    operation: Operation,
    decision: Decision,
    policy: Policy,
    evidence: Evidence | None,
    classification: Classification | None,
) -> dict[str, str]:
    """What the caller gets, if it gets anything yet."""
    if decision.action in _TELLS_NOBODY_YET:
        return {"status": NONE, "problem": NONE}
    shape = ErrorShape(policy.problem, policy.give_up_headers)
    if evidence is None or classification is None:
        reply = unknown(operation, shape, sent=False)
    else:
        reply = reply_for(operation, evidence.response, classification, shape)
    return {"status": str(reply.status_code), "problem": reply.problem or NONE, "outcome": reply.outcome}


# --- evidence from outside


def _asked(recognised: Recognised, case: Case, given: GivenResponse, came: Came) -> None:
    operation, policy = _stood(recognised, case), recognised.policy
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in recognised.call.headers}
    values = Values(operation, recognised.parameters, recognised.tree, headers)
    inquiry = next((one for one in policy.inquiries if one.target(values) is not None), None)
    if inquiry is None:
        raise CaseError(f"{policy.operation} cannot be asked about: no 'ask' of it can be filled in")
    evidence = evidence_of(Seen(filled_response(given, recognised.names(operation.reference))), policy.encoding)
    _shown(
        read_inquiry(inquiry, evidence, policy.classify, recognised.asked, values),
        Source.INQUIRY,
        operation,
        policy,
        came,
    )


def _cancelled(recognised: Recognised, case: Case, given: GivenResponse, came: Came) -> None:
    operation, policy = _stood(recognised, case).changed(cancel_sent=True), recognised.policy
    if policy.cancel is None:
        raise CaseError(f"{policy.operation} has no 'cancel'")
    response = response_of(filled_response(given, recognised.names(operation.reference)), policy.encoding)
    tree, readable = tree_of(response, policy.encoding)
    if not readable or tree in (None, {}, []):
        came.facts |= {"found": Found.MISSED, **_stands(operation)}  # an empty success shows nothing
        return
    shown = read_object("cancel", policy.cancel.read, policy.classify, recognised.asked, response, tree)
    _shown(shown, Source.CANCEL, operation, policy, came)


def _told_by_event(
    recognised: Recognised, case: Case, given: GivenResponse, rules: NoticeRules | None, came: Came
) -> None:
    operation, policy = _stood(recognised, case), recognised.policy
    if rules is None:
        raise CaseError("the policy has no 'webhook'")
    delivery = response_of(filled_response(given, recognised.names(operation.reference)), Encoding.JSON)
    notices = notices_in(rules, tree_of(delivery, policy.encoding)[0], delivery.headers)
    finder = _finder(notices[0], operation) if len(notices) == 1 else None
    came.facts |= {"found": NONE, "found_by": finder or NONE, **_stands(operation)}
    if finder is None:
        return
    if rules.hint:  # it is not believed: the provider is asked
        came.facts |= {"action": Action.STATUS_INQUIRY} if policy.inquiries else {}
        return
    event = notices[0].event
    shown, rows = object_and_rows(rules, event)
    told = Response(200, b"", delivery.headers, b"")
    seen = read_object(
        "webhook", rows, policy.classify, recognised.asked, told, shown, event=event, event_rows=rules.read
    )
    _shown(seen, Source.WEBHOOK, operation, policy, came)


def _finder(notice: Notice, operation: Operation) -> Finder | None:
    """By what the event names the operation of this case."""
    guard = operation.guard
    known = {
        Finder.OPERATION_ID: operation.stamp,
        Finder.PROVIDER_KEY: operation.provider_key,
        Finder.CLIENT_KEY: operation.client_key,
        Finder.REFERENCE: operation.reference,
        Finder.INTENT: guard.shown if guard is not None and guard.kind is GuardKind.INTENT else None,
    }
    return next((finder for finder, value in notice.names if value == known[finder]), None)


def _shown(seen: Shown, source: Source, operation: Operation, policy: Policy, came: Came) -> None:
    """What an inquiry, a cancel or an event showed, and where it leaves the operation."""
    finding = seen.finding
    came.facts["found"] = finding.found
    if finding.classification is not None:
        came.facts |= _read(finding.classification)
        operation, _ = conclude_outside(operation, source, finding.classification, policy.contract, settled=False)
    came.facts |= _stands(operation)


def _read(classification: Classification) -> dict[str, str]:
    observed = classification.observed.row if classification.observed is not None else NONE
    read = {"class": classification.reading, "effect": classification.effect, "row": classification.rule}
    return {**read, "observed": observed}


def _stands(operation: Operation) -> dict[str, str]:
    return {"state": operation.state, "outcome": operation.outcome, "reference": operation.reference or NONE}
