"""Replies to the caller: the provider's own response, unchanged, or a problem of ours (RFC 9457).

Two replies are promises. 503: nothing was sent and nothing will be. 504: the outcome is unknown; the caller may repeat
the same key, and must not make another payment. So a provider's own 502 or 503 after a possible effect never goes out
as it is: the caller gets a 504. The problem types are in `problems`, the advice for the end customer in `advice`, the
limit that held a call back in `limit_info`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from paywitness.core.advice import MAY_BE_PAID, advice_for, advice_of_problem
from paywitness.core.bodies.tree import Encoding, Tree, encode_response
from paywitness.core.call import Headers
from paywitness.core.claim import Tombstone
from paywitness.core.classify import UNREAD_SUCCESS, Expression
from paywitness.core.credential_and_hop_headers import end_to_end_of_provider
from paywitness.core.errors import BodyError
from paywitness.core.evidence import Response
from paywitness.core.guard import GIVEN_BACK, keeps_equal_calls_off
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import Operation, Outcome, State
from paywitness.core.payment import Payment
from paywitness.core.payment_claims import LimitCheck, LimitVerdict
from paywitness.core.payout import PayoutRefusal
from paywitness.core.problems import (
    ANSWERED_IN_DOUBT,
    CHECK_REFUSED,
    CLOSED_TITLES,
    CONTRADICTED,
    EQUAL_CALL_SUCCEEDED,
    EXECUTED_NOWHERE,
    NEEDS_A_PERSON,
    NOT_EXECUTED,
    PAID_ALREADY,
    PROBLEM_TYPE_PREFIX,
    PROBLEMS,
    RESERVED,
    RESPONSE_LOST,
    Problem,
    contradicted_text,
    problem_body,
)
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.core.result import Advice, Classification, Effect, ResultClass


@record
class Reply:
    status_code: int
    headers: Headers
    body: bytes
    outcome: Outcome
    problem: Problem | None = None  # set if the reply is our own
    operation_id: str | None = None
    replayed: bool = False
    reason: bytes | None = None  # the provider's own reason phrase; None: the usual one of the status
    repeat_helps: bool = True  # False: the same call would get the same problem again


@record
class ErrorShape:
    """How a provider's SDK expects errors: an extension of our problem, and headers that tell it not to try again."""

    members: Mapping[str, Any] | None = None
    give_up_headers: tuple[tuple[str, str], ...] = ()
    xml: bool = False  # whether the client reads XML


NO_SHAPE = ErrorShape()


def pass_through(operation: Operation, response: Response, *, replayed: bool = False) -> Reply:
    """The provider's response, with status and bytes unchanged, and our own headers beside it."""
    outcome = operation.outcome
    ours = _operation_headers(operation, outcome, advice_for(operation), replayed=replayed)
    headers = (*end_to_end_of_provider(response.headers), *ours)
    return Reply(response.status_code, headers, response.body, outcome, None, operation.id, replayed)


def reply_for(
    operation: Operation,
    response: Response | None,
    classification: Classification,
    shape: ErrorShape = NO_SHAPE,
    *,
    refused_before: bool = False,
) -> Reply:
    """The reply to a call after its last attempt, with this response (or none) and this classification.
    `refused_before`: an earlier attempt of the call was sent, and the provider refused it; or it went out on another
    route, which the call has left."""
    if blocks_replay(operation):
        return unknown_reply(
            operation, shape, sent=operation.attempts > 0
        )  # whatever the last response was, an incident contradicts it
    may_pass_on = passes_on_unread if operation.state.in_doubt else response_matches_state
    if response is not None and may_pass_on(operation, classification):
        return pass_through(operation, response)
    if operation.state is State.FAILED:
        if operation.outcome is Outcome.ABSENT:
            return absent_reply(operation, shape)
        if operation.outcome is Outcome.NOT_SENT or operation.key_released:
            nowhere = EXECUTED_NOWHERE if operation.fallback_of is not None else NOT_EXECUTED
            title = nowhere if refused_before else ""
            detail = _not_sent_detail(operation, refused_before=refused_before)
            return problem_reply(
                Problem.NOT_SENT, detail, operation=operation, shape=shape, sent=refused_before, title=title
            )
        return closed_reply(operation, shape, sent=True)
    if operation.state.ended or operation.state in {State.PENDING, State.REQUIRES_ACTION}:
        return closed_reply(operation, shape, sent=True)
    return unknown_reply(operation, shape, sent=True)


# Incidents about a payment that was certainly made: its reply is still true, and names the incident.
_SOFT_INCIDENTS = frozenset({IncidentKind.ANOTHER_AMOUNT, IncidentKind.TWO_REFERENCES, IncidentKind.NEGATIVE_REMAINDER})


def blocks_replay(operation: Operation) -> bool:
    """Whether the recorded reply may be untrue because of an open incident."""
    if operation.incident is None:
        return False
    return operation.state is not State.SUCCEEDED or operation.incident not in _SOFT_INCIDENTS


def response_matches_state(operation: Operation, classification: Classification) -> bool:
    """Whether a response of this class fits the state of the operation, so that it may be passed on and stored for
    replay. The response of a refused or declined re-send does not fit if an inquiry or event has shown that the payment
    was made."""
    match operation.state:
        case State.SUCCEEDED:
            return classification.result_class is ResultClass.SUCCEEDED and classification.effect is Effect.DONE
        case State.PENDING:
            return classification.result_class is ResultClass.PENDING and classification.effect is not Effect.POSSIBLE
        case State.REQUIRES_ACTION:
            return classification.result_class is ResultClass.REQUIRES_ACTION and classification.effect is Effect.NONE
        case State.FAILED:
            return classification.effect is Effect.NONE and classification.result_class is operation.result_class
        case _:
            return False


def changes_replay(before: Operation, after: Operation) -> bool:
    """Whether the stored response no longer fits the state of the operation."""
    return after.state is not before.state or _was_given_back(before, after)


def _was_given_back(before: Operation, after: Operation) -> bool:
    return after.result_class in GIVEN_BACK and before.result_class not in GIVEN_BACK


def replay_response(
    operation: Operation, as_response: Expression | None, provider_object: Tree, encoding: Encoding
) -> Response | None:
    """The response for duplicates after an inquiry or event has ended the operation: the provider's own object, in the
    shape that the policy gives it. None if there is none, or if the payment failed or was reversed: under a 200 its
    object would look like a paid one."""
    unpaid = operation.state is State.FAILED or operation.result_class in GIVEN_BACK
    if unpaid or as_response is None or provider_object is None:
        return None
    made = as_response(provider_object)
    if made is None:
        return None
    try:
        body, media_type = encode_response(made, encoding)
    except BodyError:
        return None
    return Response(200, b"OK", ((b"Content-Type", media_type.encode()),), body)


def passes_on_unread(operation: Operation, classification: Classification) -> bool:
    """Whether the caller of an operation in doubt gets the provider's own response: a readable 2xx that fits the
    request and that no row knows. The client would take any other response, even an error inside a 2xx, for a failure,
    and pay again. Not if another attempt is in doubt, because the response does not settle that one."""
    speaks_for_all = operation.doubt <= {operation.attempts}
    return operation.state.in_doubt and speaks_for_all and classification.rule == UNREAD_SUCCESS


def unknown_reply(operation: Operation, shape: ErrorShape = NO_SHAPE, *, sent: bool, detail: str = "") -> Reply:
    """504: the outcome is unknown."""
    title = CONTRADICTED if operation.incident is not None else ""
    if not detail and operation.incident is not None:
        detail = contradicted_text(operation.incident)
    if not detail and operation.state is State.REQUIRES_REVIEW:
        detail = NEEDS_A_PERSON
    if not detail and operation.doubt and operation.doubt <= operation.answered_attempts:
        detail = ANSWERED_IN_DOUBT
    detail = detail or RESPONSE_LOST
    return problem_reply(Problem.UNKNOWN, detail, operation=operation, shape=shape, sent=sent, title=title)


def absent_reply(operation: Operation, shape: ErrorShape = NO_SHAPE) -> Reply:
    """503: the operation was sent, and it is proven that the provider did not execute it."""
    detail = (
        "The payment was sent, and the provider is known not to have executed it: it was looked for when nothing could "
        "arrive any more. No money moved, and none will. It is safe to try again, best under the same key."
    )
    return problem_reply(Problem.ABSENT, detail, operation=operation, shape=shape, sent=True)


def closed_reply(operation: Operation, shape: ErrorShape = NO_SHAPE, *, sent: bool = False) -> Reply:
    """409: the operation has ended, but there is no response to replay."""
    reference = f" The provider knows it as {operation.reference}." if operation.reference else ""
    detail = f"The operation is {operation.outcome}, and its response is not kept.{reference}"
    if operation.state is State.SUCCEEDED and operation.result_class is ResultClass.REVERSED:
        detail = f"The payment was made and given back since: it was voided or reversed.{reference}"
    if operation.state is State.SUCCEEDED and operation.result_class is ResultClass.RETURNED:
        detail = f"The {operation.kind} was made, and the provider has taken it back since.{reference}"
    title = CLOSED_TITLES.get(operation.outcome, "")
    return problem_reply(
        Problem.CLOSED_WITHOUT_RESPONSE, detail, operation=operation, shape=shape, sent=sent, title=title
    )


def guarded_reply(holder: Operation, shape: ErrorShape = NO_SHAPE) -> Reply:
    """409: another operation holds the same money. The reply names it, so that the caller can look it up."""
    what = f"{holder.guard.kind} {holder.guard.label}".strip() if holder.guard is not None else "payment"
    title = ""
    if blocks_replay(holder):
        title = CONTRADICTED
        detail = (
            f"Evidence about operation {holder.id} at {holder.provider} on the same {what} contradicts itself "
            f"(incident: {holder.incident}). Nothing was sent by this call. A person must look; it is not safe to pay "
            "again."
        )
    elif keeps_equal_calls_off(holder):
        detail = (
            f"An equal call on the same {what} succeeded as operation {holder.id} at {holder.provider}, and it is not "
            "known whether its caller was told. Nothing was sent by this call. If this is its retry, it is done. "
            "If another one is meant, say why in Paywitness-Distinct."
        )
        title = EQUAL_CALL_SUCCEEDED
    elif holder.state is State.SUCCEEDED:
        title = PAID_ALREADY
        detail = (
            f"The {what} was paid by operation {holder.id} at {holder.provider}. Nothing was sent by this call. If "
            "another payment of it is meant, say why in Paywitness-Distinct."
        )
    else:
        detail = (
            f"Operation {holder.id} at {holder.provider} on the same {what} is {holder.outcome}. Nothing was sent by "
            "this call. Wait for that one; it is not safe to pay again."
        )
    return problem_reply(Problem.GUARDED, detail, operation=holder, shape=shape, sent=False, title=title)


def paid_before_reply(paid_by: str, shape: ErrorShape = NO_SHAPE, provider: str = "") -> Reply:
    """409: an operation that is no longer kept has paid the intent or payout reference."""
    detail = (
        f"This was paid before, as {paid_by}: its operation is no longer kept, or it did not come through here. "
        "Nothing was sent by this call. If another payment of it is meant, say why in Paywitness-Distinct."
    )
    return problem_reply(Problem.GUARDED, detail, shape=shape, sent=False, provider=provider, title=PAID_ALREADY)


def refunded_reply(holder: Operation, shape: ErrorShape = NO_SHAPE) -> Reply:
    """409: an equal payment of the same intent was made and refunded. A late duplicate must not charge again."""
    what = f"{holder.guard.kind} {holder.guard.label}".strip() if holder.guard is not None else "payment"
    detail = (
        f"The {what} was paid by operation {holder.id} and given back since. Nothing was sent by this call. If it is "
        "meant to be paid again, say why in Paywitness-Distinct."
    )
    return problem_reply(Problem.REFUNDED, detail, operation=holder, shape=shape, sent=False)


def limit_reply(
    kind: OperationKind,
    payment: Payment | None,
    limit: LimitCheck | None,
    holder: Operation | None,
    shape: ErrorShape = NO_SHAPE,
) -> Reply:
    """422 if the balance of the payment does not allow the movement; 409 if it may once open movements have ended."""
    left = "an unknown amount"
    if limit is not None and limit.remaining is not None and payment is not None and payment.currency is not None:
        left = str(Money(max(0, limit.remaining), payment.currency))
    if holder is not None and limit is not None and limit.verdict is LimitVerdict.RESERVED:
        detail = (
            f"{left} is left for this {kind}: another {limit.reserved_by} of the payment is {holder.outcome} and "
            "reserves the rest. Nothing was sent by this call. Try again when that one has ended."
        )
        return problem_reply(
            Problem.GUARDED,
            detail,
            operation=holder,
            shape=shape,
            sent=False,
            retry_after_s=_RESERVED_RETRY_S,
            title=RESERVED,
        )
    name = f" {payment.names[0]}" if payment is not None and payment.names else ""
    detail = f"This {kind} exceeds what is left of payment{name}: {left}. Nothing was sent."
    return problem_reply(Problem.EXCEEDS_REMAINING, detail, shape=shape, sent=False)


_RESERVED_RETRY_S = 30  # an unknown outcome takes minutes, not a second


def payout_refused_reply(refusal: PayoutRefusal, shape: ErrorShape = NO_SHAPE, provider: str = "") -> Reply:
    """409: the payout would exceed a cap, a person has to approve it first, or the policy's check did not allow it."""
    kind, detail, retry_after_s = _payout_refusal(refusal)
    return problem_reply(kind, detail, shape=shape, provider=provider, retry_after_s=retry_after_s)


def _payout_refusal(refusal: PayoutRefusal) -> tuple[Problem, str, int | None]:
    approval, refused = refusal.approval, refusal.cap
    if approval is not None:
        detail = (
            f"An operator must approve this payout first: `paywitness ops approve {approval.terms.id}`. Nothing was "
            "sent by this call. Repeat it unchanged once it is approved, under the same key or another."
        )
        return Problem.APPROVAL_NEEDED, detail, _APPROVAL_RETRY_S
    if refused is None:
        return Problem.REFUSED_BY_CHECK, CHECK_REFUSED, None
    if refused.cap is None:
        detail = f"This payout cannot be held against the caps of its policy: {refused.detail}. Nothing was sent."
        return Problem.CAP_EXCEEDED, detail, None
    cap, left = refused.cap, Money(refused.left, refused.cap.amount.currency)
    detail = (
        f"This payout exceeds what is left of the cap for its {cap.per} in this window: {left} of {cap.amount}. "
        "Payouts that are open or unknown count as spent. Nothing was sent."
    )
    return Problem.CAP_EXCEEDED, detail, max(1, math.ceil(refused.ends_in_s))


_APPROVAL_RETRY_S = 60  # a person has to approve it


def expired_reply(tombstone: Tombstone | None, shape: ErrorShape = NO_SHAPE, provider: str = "") -> Reply:
    """410: the key was used long ago. Its tombstone shows the outcome."""
    detail = "This key belongs to an operation of long ago. It will not be executed again."
    if tombstone is not None:
        known = f", known to the provider as {tombstone.reference}" if tombstone.reference else ""
        detail = f"{detail} It was {tombstone.operation_id}, which is {tombstone.outcome}{known}."
        if tombstone.outcome is Outcome.REQUIRES_ACTION:
            detail = f"{detail} The customer had not acted, and may still: ask the provider before you pay elsewhere."
    return problem_reply(Problem.KEY_EXPIRED, detail, shape=shape, provider=provider)


def _not_sent_detail(operation: Operation, *, refused_before: bool) -> str:
    cause = (operation.result_class or ResultClass.NETWORK_CONNECT_FAILURE).replace("_", " ")
    tries = f"{operation.attempts} {'try' if operation.attempts == 1 else 'tries'}"
    if refused_before and operation.fallback_of is not None:
        first = f"It was sent to {operation.fallback_from or 'another provider'}, which did not execute it"
        return f"{first}. Nor did {operation.provider} after {tries} ({cause}). It is safe to try again, or elsewhere."
    if refused_before and operation.result_class is ResultClass.NETWORK_CONNECT_FAILURE:
        return (
            f"The provider refused it and was not reached after that ({tries}). It is safe to try again, or elsewhere."
        )
    if operation.result_class in {None, ResultClass.NETWORK_CONNECT_FAILURE}:
        return f"The provider was not reached after {tries} ({cause}). It is safe to try again, or elsewhere."
    return f"The provider did not execute it after {tries} ({cause}). It is safe to try again, or elsewhere."


def problem_reply(
    kind: Problem,
    detail: str,
    *,
    operation: Operation | None = None,
    shape: ErrorShape = NO_SHAPE,
    sent: bool = False,
    retry_after_s: int | None = None,
    provider: str = "",
    title: str = "",
    without_effect: bool = False,
) -> Reply:
    """A reply of our own: what happened, what it means for the money, what to do next. `retry_after_s`: None means one
    second, if a repeat can help at all. `title`: the title of this case, if the problem has several. `without_effect`:
    the call cannot have moved money, even if its kind of problem leaves that open."""
    facts = PROBLEMS[kind]
    outcome, advice = _outcome_of(kind, operation), advice_of_problem(kind, operation)
    if without_effect:
        advice = Advice.TRY_AGAIN_LATER
    repeat_helps = facts.repeat_helps and not _is_settled_for_good(kind, operation)
    members: dict[str, Any] = {
        "type": PROBLEM_TYPE_PREFIX + kind,
        "title": title or facts.title,
        "status": facts.status_code,
        "detail": detail,
        "outcome": outcome,
        "sent": sent,
        "side_effect_may_exist": not without_effect and _effect_may_exist(kind, operation),
        "advice": advice,
    }
    if operation is not None:
        members["instance"] = f"/paywitness/operations/{operation.id}"
        members["operation"] = operation.id
        if outcome is not operation.outcome and outcome is Outcome.NONE:
            members["holder"] = {"operation": operation.id, "outcome": operation.outcome}
        if operation.due_at is not None and not operation.state.ended:
            members["next_check_at"] = operation.due_at
    body, media_type = problem_body(members, shape.members or {}, kind, detail, xml=shape.xml)
    headers: list[tuple[bytes, bytes]] = [(b"Content-Type", media_type)]
    if retry_after_s is not None or (repeat_helps and facts.status_code in {409, 503}):
        headers.append((b"Retry-After", str(retry_after_s if retry_after_s is not None else 1).encode()))
    if not repeat_helps:
        headers.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in shape.give_up_headers)
    if operation is not None:
        headers.extend(_operation_headers(operation, outcome, advice, replayed=False))
    else:
        headers.append((b"Paywitness-Outcome", outcome.encode()))
        if provider.isascii() and provider.isprintable() and provider:  # it may be a caller's text: no line breaks
            headers.append((b"Paywitness-Provider", provider.encode()))
    named = operation.id if operation is not None else None
    return Reply(facts.status_code, tuple(headers), body, outcome, kind, named, repeat_helps=repeat_helps)


def _is_settled_for_good(kind: Problem, operation: Operation | None) -> bool:
    """Whether the same call gets the same reply until something else changes: a person ends the review, or somebody
    refunds the payment."""
    if kind is Problem.GUARDED:
        return operation is None or operation.state is State.SUCCEEDED
    return operation is not None and operation.state is State.REQUIRES_REVIEW


_NOTHING_KNOWN = frozenset({Problem.UNKNOWN, Problem.JOURNAL_UNAVAILABLE, Problem.ACCOUNT_UNKNOWN})


def _outcome_of(kind: Problem, operation: Operation | None) -> Outcome:
    if kind in _NOTHING_KNOWN:
        return Outcome.UNKNOWN  # also if it is still being sent: the caller cannot know the outcome
    if operation is None:
        return Outcome.NOT_SENT if kind is Problem.NOT_SENT else Outcome.NONE
    if kind not in _OF_ANOTHER_PAYMENT:
        return operation.outcome
    if blocks_replay(operation):
        return Outcome.UNKNOWN  # an incident contradicts its end: a failure may have been paid
    if operation.state.ended and not keeps_equal_calls_off(operation):
        return Outcome.NONE  # this payment was not made, whatever became of the other one: its end is not the caller's
    return operation.outcome


# Problems that name another operation. While that one is open, the caller must treat its outcome as that of the call.
_OF_ANOTHER_PAYMENT = frozenset({Problem.GUARDED, Problem.KEY_REUSED, Problem.REFUNDED})


def _effect_may_exist(kind: Problem, operation: Operation | None) -> bool:
    if operation is None:
        return kind in MAY_BE_PAID
    return operation.state not in {State.PREPARED, State.BACKOFF, State.FAILED} or operation.incident is not None


def operation_summary(operation: Operation) -> dict[str, Any]:
    """The facts about an operation that a caller may know: its outcome for the money, and the next step. No payload."""
    return {
        "operation": operation.id,
        "provider": operation.provider,
        "name": operation.operation,
        "kind": operation.kind,
        "outcome": operation.outcome,
        "state": operation.state,
        "attempts": operation.attempts,
        "in_doubt": sorted(operation.doubt),
        "side_effect_may_exist": _effect_may_exist(Problem.UNKNOWN, operation),
        "advice": advice_for(operation),
        "because": operation.because,
        "reading": operation.result_class,
        "reference": operation.reference,
        "amount": str(operation.money.major) if operation.money is not None else None,
        "currency": operation.money.currency if operation.money is not None else None,
        "incident": operation.incident,
        "created_at": operation.created_at,
        "updated_at": operation.updated_at,
        "next_check_at": operation.due_at if not operation.state.ended else None,
    }


def operation_reply(operation: Operation) -> Reply:
    """The reply to a caller that asks for an operation by its id."""
    body = json.dumps(operation_summary(operation)).encode()
    headers = ((b"Content-Type", b"application/json"), (b"Paywitness-Outcome", operation.outcome.encode()))
    return Reply(200, headers, body, operation.outcome)


def _operation_headers(operation: Operation, outcome: Outcome, advice: Advice, *, replayed: bool) -> Headers:
    pairs = [
        (b"Paywitness-Operation", operation.id.encode("latin-1")),
        (b"Paywitness-Outcome", outcome.encode()),
        (b"Paywitness-Attempts", b"%d" % operation.attempts),
        (b"Paywitness-Provider", operation.provider.encode("latin-1")),
    ]
    if operation.because:
        pairs.append((b"Paywitness-Because", operation.because.encode("latin-1")))
    pairs.append((b"Paywitness-Advice", advice.encode()))
    if operation.incident is not None:
        pairs.append((b"Paywitness-Incident", operation.incident.encode("latin-1")))
    key = operation.client_key
    if key and key.isascii() and key.isprintable():
        pairs.append((b"Paywitness-Key", key.encode("ascii")))
    if operation.provider_key is not None and operation.provider_key != key:
        pairs.append((b"Paywitness-Provider-Key", operation.provider_key.encode("latin-1")))
    if replayed:
        pairs.append((b"Paywitness-Replayed", b"true"))
    return tuple(pairs)
