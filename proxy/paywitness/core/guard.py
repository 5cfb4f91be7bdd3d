"""Guards keep two operations off the same money, whatever keys they came under.

SDKs and job runners make a new key for every try, so a key alone does not recognise a retry. The guard does. An
operation holds its guard while it is open; in doubt, that may be for ever. A paid intent holds it as its policy said.
An operation that was paid or accepted, and whose reply reached no caller, holds it for a day, until the next equal call
takes that reply. An end that an incident contradicts holds it until a person has decided: calls get a 504, because a
failure may have been paid.

If a sidecar cannot reach the journal, it spools its evidence and replies to its caller. Its lease expires, and another
sidecar finds the success. That sidecar cannot know whether the caller got the reply (`delivery_unknown`). If no intent
names the purchase, an equal call is then either the retry of a caller without a reply, or the next movement of a caller
that has one. A replay would lose that next movement. A send would make the first movement twice. So the call is refused
until the lost holder's evidence arrives, the first key returns, the caller states by `Paywitness-Distinct` that it
means another movement, or a day has passed. The same rule holds for an end that was recorded close to its caller's
deadline, until its sidecar has recorded whether the caller got the reply. It also holds if the caller got a 2xx which
no row knows, because the caller may or may not have taken it for a success.
"""

from __future__ import annotations

from enum import StrEnum

from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Guard, GuardKind, Operation, RepeatPaymentRule, State
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass

TAKEOVER_WITHIN_S = 86_400.0  # a job that tries again after more than a day is a new order

_OPEN = frozenset({State.PREPARED, State.SENDING, State.BACKOFF, State.UNKNOWN, State.REQUIRES_REVIEW})


# Paid and then given back: voided, reversed, or taken back by the provider.
GIVEN_BACK = frozenset({ResultClass.REVERSED, ResultClass.RETURNED})


# A call took over the reply, but left before it got it. No other key may take it now: the call's key may return, or a
# duplicate of the call may have got the reply meanwhile.
GIVEN_BACK_BY_TAKER = "given_back"


class GuardHold(StrEnum):
    """Why an operation holds its guard."""

    OPEN = "open"
    UNDELIVERED = "unheard"  # it was paid or accepted, and its reply reached no caller
    PAID = "paid"  # the intent is paid, and its policy blocks another payment
    GIVEN_BACK = "given_back"  # it was paid, and voided or reversed: an equal call is refused, another one passes


def indexed_guard(operation: Operation) -> str | None:
    """The guard under which a journal must find the operation. None: it can neither hold the guard nor be an incident
    with another operation any more."""
    guard = operation.guard
    if guard is None:
        return None
    if _is_open(operation) or _awaits_takeover(operation) or operation.paid_elsewhere:
        return guard.value
    if guard.kind is not GuardKind.INTENT:
        return guard.value if _is_kept_transfer(operation) else None
    if operation.state in {State.PENDING, State.REQUIRES_ACTION}:
        return guard.value
    keeps = is_paid(operation) or _was_voided(operation)
    return guard.value if keeps and guard.after_success is not RepeatPaymentRule.ALLOW else None


def is_more_than_paid(operation: Operation) -> bool:
    """Whether look-ups under the guard must find this operation, however many others have been paid there since. Of
    operations that were simply paid the newest are enough. Stores test the same with their own columns."""
    return operation.state is not State.SUCCEEDED or operation.incident is not None or operation.lease is not None


def hold_of(operation: Operation, now: float) -> GuardHold | None:
    """Why the operation keeps another one from starting; None if it does not."""
    guard = operation.guard
    if guard is None:
        return None
    if _is_open(operation):
        return GuardHold.OPEN
    if operation.paid_elsewhere:
        return GuardHold.PAID
    by_intent = _hold_of_intent(operation, guard) if guard.kind is GuardKind.INTENT else None
    if by_intent is not None:
        return by_intent
    if _is_kept_transfer(operation):
        return GuardHold.OPEN if operation.state is State.PENDING else GuardHold.PAID
    ended_at = operation.ended_at if operation.ended_at is not None else operation.updated_at
    if _awaits_takeover(operation) and now - ended_at < TAKEOVER_WITHIN_S:
        return GuardHold.UNDELIVERED
    return None


def _hold_of_intent(operation: Operation, guard: Guard) -> GuardHold | None:
    if operation.state is State.PENDING:
        return GuardHold.OPEN
    if operation.state is State.REQUIRES_ACTION and guard.during_action is RepeatPaymentRule.BLOCK:
        return GuardHold.OPEN
    if guard.after_success is not RepeatPaymentRule.BLOCK:
        return None
    if is_paid(operation):
        return GuardHold.PAID
    return GuardHold.GIVEN_BACK if _was_voided(operation) else None


def _was_voided(operation: Operation) -> bool:
    """Whether it was paid and undone on purpose. A payment that the provider took back, such as a bounced debit, is
    like a decline: nobody has cancelled that order."""
    return operation.state is State.SUCCEEDED and operation.result_class is ResultClass.REVERSED


def _is_kept_transfer(operation: Operation) -> bool:
    """Whether it is a payout that was accepted or made, was not returned, and blocks another one of its reference."""
    guard = operation.guard
    return (
        operation.kind is OperationKind.PAYOUT
        and guard is not None
        and guard.kind is GuardKind.TARGET
        and guard.after_success is RepeatPaymentRule.BLOCK
        and operation.state in _WITH_EFFECT
        and operation.result_class not in GIVEN_BACK
    )


def is_remembered(operation: Operation) -> bool:
    """Whether its intent, or its payout's reference, must not be paid again after the operation itself is retired."""
    guard = operation.guard
    if guard is None or guard.after_success is not RepeatPaymentRule.BLOCK:
        return False
    return _is_kept_transfer(operation) or (guard.kind is GuardKind.INTENT and is_paid(operation))


def is_abandoned_for_good(operation: Operation) -> bool:
    """Whether its customer never acted, and it holds no guard. A follow-up never is, because it reserves a part of its
    payment."""
    guard = operation.guard
    blocks = guard is not None and guard.kind is GuardKind.INTENT and guard.during_action is RepeatPaymentRule.BLOCK
    is_free = not blocks and not operation.paid_elsewhere and not operation.doubt and not operation.attempt_under_way
    return operation.abandoned and operation.kind.pays and is_free


def _is_open(operation: Operation) -> bool:
    """Whether it may still pay, or an incident contradicts its end (callers get "unknown"), or its reply is under
    way."""
    contradicted = operation.state.ended and operation.incident not in {None, IncidentKind.BOTH_KEYS_RETURNED}
    return operation.state in _OPEN or contradicted or is_reply_under_way(operation)


def _awaits_takeover(operation: Operation) -> bool:
    """Whether its reply reached no caller, and is still true: a payment that was given back since cannot be taken
    over."""
    return operation.undelivered and operation.result_class not in GIVEN_BACK


def may_be_taken(operation: Operation) -> bool:
    """Whether an equal call may take an undelivered reply."""
    is_promised = operation.delivery_unknown or operation.takeover == GIVEN_BACK_BY_TAKER
    return names_its_purchase(operation) or not is_promised


def names_its_purchase(operation: Operation) -> bool:
    """Whether an equal call always means the same movement, even if the first caller got its reply: because of its
    intent, or because a void happens only once."""
    by_intent = operation.guard is not None and operation.guard.kind is GuardKind.INTENT
    return by_intent or operation.kind is OperationKind.VOID


def keeps_equal_calls_off(operation: Operation) -> bool:
    """Whether the operation blocks only equal calls: it succeeded, and perhaps no caller got the reply. With an intent
    or a payout's reference it does not, because an equal call then gets the reply, and only different calls are
    refused."""
    by_intent = operation.guard is not None and operation.guard.kind is GuardKind.INTENT
    is_joined = by_intent or operation.kind is OperationKind.PAYOUT
    return operation.state is State.SUCCEEDED and operation.undelivered and not is_joined


def is_reply_under_way(operation: Operation) -> bool:
    """Whether an event or a late response ended the operation while its holder's attempt is under way. Only the holder
    knows whether its caller gets the reply."""
    return operation.state in _WITH_EFFECT and operation.attempt_under_way and operation.lease is not None


def is_undelivered(before: Operation, after: Operation, *, reached: bool) -> bool:
    """Whether the operation is paid or accepted after a change, and no caller got its reply. `reached`: a caller gets
    it now. If a caller got the reply when it was accepted, its success is no new reply. If an event overtook the
    attempt, the attempt's own end decides. If others found the success first, it is delivered once its own caller got
    the reply."""
    if after.state not in _WITH_EFFECT:
        return False
    if is_reply_under_way(before) and not is_reply_under_way(after):
        return after.undelivered or not reached
    if before.state in _WITH_EFFECT or before.state is State.REQUIRES_ACTION:
        return after.undelivered and not reached
    return not reached and not is_reply_under_way(after)


_WITH_EFFECT = frozenset({State.SUCCEEDED, State.PENDING})


def is_paid(operation: Operation) -> bool:
    """Whether it is a payment that was made and not given back."""
    return operation.state is State.SUCCEEDED and operation.result_class not in GIVEN_BACK


def is_duplicate_success(first: Operation, second: Operation) -> bool:
    """Whether the second operation's success pays the intent of the first again. Two steps of one payment are one
    success. Parts of one total are no duplicates: their claims have checked them against the total."""
    guard = second.guard
    return (
        not (second.payment and first.payment == second.payment)
        and not (first.in_parts and second.in_parts)
        and guard is not None
        and guard.kind is GuardKind.INTENT
        and guard.after_success is not RepeatPaymentRule.ALLOW
        and not second.distinct
        and first.id != second.id
        and first.kind.pays
        and second.kind.pays
        and is_paid(first)
    )
