"""Evidence from outside our own attempts: how an inquiry, a webhook event, a cancel or a person changes an operation.

The counterpart of `lifecycle.conclude`. No evidence makes it raise. If evidence cannot be applied now, because an
attempt is under way or may still arrive, it is **postponed**, and applied again when that is over.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from paywitness.core.lifecycle import (
    ACTIONS,
    EXTERNAL_DENIALS,
    REVERSALS,
    SUCCESSES,
    TABLE,
    Event,
    advance,
    contradiction,
    shown_instead,
)
from paywitness.core.operation import Operation, State
from paywitness.core.provider_contract import ErrorsUnderKey, ProviderContract
from paywitness.core.result import DENIALS, DOES_NOT_FIT, PROVIDER_SAID_NO, Classification, Effect, ResultClass


class EvidenceSource(StrEnum):
    INQUIRY = "inquiry"
    WEBHOOK = "webhook"
    CANCEL = "cancel"
    OPERATOR = "operator"


_EVENTS: dict[EvidenceSource, dict[str, Event]] = {
    EvidenceSource.INQUIRY: {
        "success": Event.INQUIRY_FOUND_SUCCESS,
        "pending": Event.INQUIRY_FOUND_PENDING,
        "action": Event.INQUIRY_FOUND_ACTION,
        "denial": Event.INQUIRY_FOUND_DENIAL,
        "reversal": Event.INQUIRY_FOUND_REVERSAL,
        "absent": Event.INQUIRY_CONFIRMED_ABSENT,
    },
    EvidenceSource.WEBHOOK: {
        "success": Event.WEBHOOK_TOLD_SUCCESS,
        "pending": Event.WEBHOOK_TOLD_PENDING,
        "action": Event.WEBHOOK_TOLD_ACTION,
        "denial": Event.WEBHOOK_TOLD_DENIAL,
        "reversal": Event.WEBHOOK_TOLD_REVERSAL,
    },
    EvidenceSource.CANCEL: {
        "denial": Event.CANCEL_SHOWN,
        "success": Event.INQUIRY_FOUND_SUCCESS,
        "reversal": Event.INQUIRY_FOUND_REVERSAL,
    },
    EvidenceSource.OPERATOR: {"success": Event.OPERATOR_FOUND_SUCCESS, "denial": Event.OPERATOR_FOUND_FAILURE},
}


def event_of(source: EvidenceSource, result_class: ResultClass) -> Event | None:
    """The lifecycle event of this class from this source; None if it proves nothing."""
    kinds = {
        ResultClass.SUCCEEDED: "success",
        ResultClass.PENDING: "pending",
        ResultClass.REQUIRES_ACTION: "action",
        ResultClass.REVERSED: "reversal",
        ResultClass.RETURNED: "reversal",
        ResultClass.ABSENT: "absent",
    }
    kind = kinds.get(result_class, "denial" if result_class in DENIALS else "")
    return _EVENTS[source].get(kind)


def as_taken_back(operation: Operation, classification: Classification, *, failed_is_return: bool) -> Classification:
    """The classification as `returned`, if the policy treats a failure after success as a return of the movement."""
    fails_after_success = operation.state is State.SUCCEEDED and classification.result_class in DENIALS
    if not failed_is_return or not fails_after_success:
        return classification
    return replace(classification, result_class=ResultClass.RETURNED, effect=Effect.DONE)


def precedes_end(
    operation: Operation, classification: Classification, *, failed_is_return: bool, is_response: bool = False
) -> bool:
    """Whether evidence is older than the failure of its object, and only arrives after it. It then shows that the
    object was accepted first; or that it succeeded first, if the policy treats a failure after success as a return. An
    attempt's own response (`is_response`) may also show a success from before its object was cancelled."""
    was_cancelled = is_response and operation.result_class is ResultClass.CANCELLED
    may_succeed_first = failed_is_return or was_cancelled
    is_earlier = classification.result_class is ResultClass.PENDING or (
        may_succeed_first and classification.result_class is ResultClass.SUCCEEDED
    )
    is_denied = operation.state is State.FAILED and operation.result_class in DENIALS
    same_object = operation.reference is not None and classification.reference == operation.reference
    return is_earlier and is_denied and same_object


def changes_nothing(before: Operation, after: Operation) -> bool:
    """Whether evidence leaves the operation unchanged."""
    return (
        after.state is before.state
        and after.doubt == before.doubt
        and after.result_class is before.result_class
        and after.reference == before.reference
        and after.incident == before.incident
    )


def conclude_external(
    operation: Operation,
    source: EvidenceSource,
    classification: Classification,
    contract: ProviderContract,
    *,
    settled: bool,
    may_be_stale: bool = False,
) -> tuple[Operation, Event | None]:
    """The operation after this evidence, and the event; None: the evidence causes no event now. `settled`: no request
    of the operation can still arrive. `may_be_stale`: a denial may concern an earlier attempt, of another call."""
    paid = operation.state in {State.SUCCEEDED, State.PENDING}
    if classification.rule == DOES_NOT_FIT:
        incident = contradiction(operation, classification) if paid else None
        if incident is None or operation.incident is not None:
            return operation, None
        return operation.changed(incident=incident, other_payment=shown_instead(operation, classification)), None
    if _of_another_execution(operation, event_of(source, classification.result_class), classification, contract):
        return operation, None  # an open operation is inquired about on its schedule
    if operation.state is State.SUCCEEDED and classification.result_class is ResultClass.CANCELLED:
        # A payment that was made and then voided was given back, which is not the same as never made.
        classification = replace(classification, result_class=ResultClass.REVERSED, effect=Effect.DONE)
    event = event_of(source, classification.result_class)
    if event is None or _must_wait(operation, event, contract, settled=settled, may_be_stale=may_be_stale):
        return operation, None
    if event is Event.WEBHOOK_TOLD_PENDING and operation.state is State.FAILED and operation.result_class in DENIALS:
        return operation, None  # events out of order: it was accepted before it was declined, so this adds nothing
    after = advance(operation, event)
    shown = classification.reference
    reversal = event in REVERSALS
    is_authoritative = not operation.state.ended or (reversal and operation.state is State.SUCCEEDED)
    if (
        event is Event.INQUIRY_CONFIRMED_ABSENT
        and operation.effect is Effect.NONE
        and operation.result_class in DENIALS
    ):
        is_authoritative = False  # one attempt was executed and denied: that the others never arrived changes nothing
    newer = classification.effect is Effect.DONE and not paid and not operation.state.ended
    contradicted = contradiction(operation, classification) if paid else None
    stands = after.incident or contradicted
    is_new = stands is not None and operation.incident is None
    return (
        after.changed(
            result_class=classification.result_class if is_authoritative else after.result_class,
            effect=classification.effect if is_authoritative else after.effect,
            advice=classification.advice if is_authoritative else after.advice,
            reference=(shown or after.reference) if newer else (after.reference or shown),
            incident=stands,
            other_payment=shown_instead(operation, classification) if is_new else operation.other_payment,
        ),
        event,
    )


def _must_wait(
    operation: Operation, event: Event, contract: ProviderContract, *, settled: bool, may_be_stale: bool
) -> bool:
    """Whether the event must wait: for the attempt that is under way, or for those that may still arrive."""
    if event not in TABLE[operation.state]:
        return True
    if (
        event is Event.INQUIRY_CONFIRMED_ABSENT
        and not operation.state.ended
        and not (settled and _may_be_absent(operation))
    ):
        return True
    ending = event not in SUCCESSES
    if ending and operation.attempt_under_way and not operation.state.ended:
        return True
    # One execution was denied. If the provider does not store such responses, it may execute another attempt after it:
    # one of several in doubt, or the last one in doubt, if the denial belongs to an attempt that was denied already.
    was_denied = (
        bool(operation.doubt) and operation.effect is Effect.NONE and operation.result_class in PROVIDER_SAID_NO
    )
    several = (was_denied or len(operation.doubt) > 1) and contract.errors_under_key is not ErrorsUnderKey.REPLAYED
    # An object that several calls share shows the denial of the call that ended last, which may be an earlier call.
    of_earlier_call = may_be_stale and (bool(operation.doubt) or operation.state is State.BACKOFF)
    denies = event in {*EXTERNAL_DENIALS, *ACTIONS} - {Event.OPERATOR_FOUND_FAILURE}
    # A webhook event is about one execution, and does not show which. Even if nothing can still arrive, other attempts
    # may have arrived before.
    covers_all = settled and event not in _SPEAKS_OF_ONE_EXECUTION
    if may_be_stale and operation.state in {State.SUCCEEDED, State.PENDING, State.REQUIRES_ACTION}:
        return denies and not settled  # a lagging replica shows the object as it was before our attempt
    return denies and (several or of_earlier_call) and not covers_all and not operation.state.ended


_SPEAKS_OF_ONE_EXECUTION = frozenset({Event.WEBHOOK_TOLD_DENIAL, Event.WEBHOOK_TOLD_ACTION})


def _of_another_execution(
    operation: Operation, event: Event | None, classification: Classification, contract: ProviderContract
) -> bool:
    """Whether a webhook event with a denial may be about another execution than the one that paid, was accepted, or
    waits for the customer. That is possible if the operation was sent more than once, and the provider executes again
    after a failure. If the operation has paid, only different references show it; without them a person has to
    check."""
    again = contract.errors_under_key is not ErrorsUnderKey.REPLAYED
    if event not in _SPEAKS_OF_ONE_EXECUTION or not again or operation.attempts < 2:
        return False
    shown, known = classification.reference, operation.reference
    if operation.state is State.SUCCEEDED:
        return shown is not None and known is not None and shown != known
    same = known is not None and shown == known
    return operation.state in {State.PENDING, State.REQUIRES_ACTION} and not same


def _may_be_absent(operation: Operation) -> bool:
    """Whether the operation may turn out never to have arrived. It must be in doubt. One that the provider accepted
    before it was parked, or asked the customer to confirm, has arrived."""
    action_required = operation.effect is Effect.NONE and operation.result_class is ResultClass.REQUIRES_ACTION
    return bool(operation.doubt) and not action_required


def is_postponed(
    operation: Operation,
    source: EvidenceSource,
    result_class: ResultClass,
    contract: ProviderContract,
    *,
    may_be_stale: bool = False,
) -> bool:
    """Whether this evidence should be kept and applied again later. False: it proves nothing, or can be applied now."""
    event = event_of(source, result_class)
    return event is not None and _must_wait(operation, event, contract, settled=False, may_be_stale=may_be_stale)
