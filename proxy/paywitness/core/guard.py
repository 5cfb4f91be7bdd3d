"""Guards: what keeps two operations off the same money, whatever keys they came under.

SDKs and job runners mint a fresh key for every try, so a key alone does not recognise a retry. The guard does: an
operation holds it while it is open, doubt included and for ever; a paid intent as its policy said; and what was paid
or accepted and whose answer reached nobody, for a day, until the next equal call takes that answer. An end that is
contradicted holds it until a person has looked: it is answered by 504, and a failure may have been paid.

A holder that cannot reach the journal answers its caller from its spool. Its lease runs out, and another sidecar finds
the success: that one cannot know whether the caller was told (`delivery_unknown`). Without an intent that names the
purchase, an equal call is then either the retry of a caller that was not told, or the next one of a caller that was.
To give it the first one's reply would lose the next movement, to send it would make the first one twice. It is
refused until the lost holder's evidence arrives, the first key returns, the caller states by `Paywitness-Distinct`
that another one is meant, or a day has passed. The same holds for an end that was recorded when its caller's deadline
was near, until its sidecar has recorded whether the caller got the reply. And for a caller that was passed a 2xx which
no row knows: it may have taken it for a success, or not.
"""

from __future__ import annotations

from enum import StrEnum

from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import Guard, GuardKind, Operation, RepeatPaymentRule, State
from paywitness.core.provider_contract import OperationKind
from paywitness.core.result import ResultClass

TAKEOVER_WITHIN_S = 86_400.0  # a job that tries again after more than a day is a new order

_OPEN = frozenset({State.PREPARED, State.SENDING, State.BACKOFF, State.UNKNOWN, State.REQUIRES_REVIEW})


# What was paid and then given back: voided, reversed, or taken back by the provider.
GIVEN_BACK = frozenset({ResultClass.REVERSED, ResultClass.RETURNED})


# A call took the reply and left without it. Its key may return for it, or a duplicate of it was told meanwhile: so no
# other key is given it.
GIVEN_BACK_BY_TAKER = "given_back"


class GuardHold(StrEnum):
    """Why an operation holds its guard."""

    OPEN = "open"
    UNDELIVERED = "unheard"  # it was paid or accepted, and its answer reached nobody
    PAID = "paid"  # the intent is paid, and its policy blocks another payment
    GIVEN_BACK = "given_back"  # it was paid, and voided or reversed: an equal call is told so, another passes


def indexed_guard(operation: Operation) -> str | None:
    """The guard under which a journal must find the operation; None once it can hold nothing and contradict nothing."""
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
    """Whether it must be found under its guard however many others have been paid there since. Of those that were
    simply paid the newest are enough. Stores ask this of their own columns."""
    return operation.state is not State.SUCCEEDED or operation.incident is not None or operation.lease is not None


def hold_of(operation: Operation, now: float) -> GuardHold | None:
    """Whether the operation keeps another one off, and why."""
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
    """Whether it was paid and undone on purpose. What the provider took back, a debit that bounced, is like a decline:
    nobody has cancelled that order."""
    return operation.state is State.SUCCEEDED and operation.result_class is ResultClass.REVERSED


def _is_kept_transfer(operation: Operation) -> bool:
    """Whether it is a payout that was accepted or made, and not returned, whose reference is not paid again."""
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
    """Whether its customer never acted, and it keeps nobody off. A follow-up reserves part of a payment, and stays."""
    guard = operation.guard
    blocks = guard is not None and guard.kind is GuardKind.INTENT and guard.during_action is RepeatPaymentRule.BLOCK
    is_free = not blocks and not operation.paid_elsewhere and not operation.doubt and not operation.attempt_under_way
    return operation.abandoned and operation.kind.pays and is_free


def _is_open(operation: Operation) -> bool:
    """Whether it may still pay, ended in a contradiction that callers are told as unknown, or is being answered."""
    contradicted = operation.state.ended and operation.incident not in {None, IncidentKind.BOTH_KEYS_RETURNED}
    return operation.state in _OPEN or contradicted or is_reply_under_way(operation)


def _awaits_takeover(operation: Operation) -> bool:
    """Whether its answer reached nobody, and still says the truth: what was given back since is no payment to take."""
    return operation.undelivered and operation.result_class not in GIVEN_BACK


def may_be_taken(operation: Operation) -> bool:
    """Whether an equal call may take an undelivered reply."""
    is_promised = operation.delivery_unknown or operation.takeover == GIVEN_BACK_BY_TAKER
    return names_its_purchase(operation) or not is_promised


def names_its_purchase(operation: Operation) -> bool:
    """Whether an equal call means the same thing, whoever was told of it: by the intent, or because a void happens
    once."""
    by_intent = operation.guard is not None and operation.guard.kind is GuardKind.INTENT
    return by_intent or operation.kind is OperationKind.VOID


def keeps_equal_calls_off(operation: Operation) -> bool:
    """Whether only equal calls are refused because of it: it succeeded, and perhaps nobody was told. Of an intent and
    of a payout's reference an equal call gets the reply itself: whoever is refused there asks for something else."""
    by_intent = operation.guard is not None and operation.guard.kind is GuardKind.INTENT
    is_joined = by_intent or operation.kind is OperationKind.PAYOUT
    return operation.state is State.SUCCEEDED and operation.undelivered and not is_joined


def is_reply_under_way(operation: Operation) -> bool:
    """Whether an event, or a late answer, overtook the attempt of a living holder: only that one knows who hears it."""
    return operation.state in _WITH_EFFECT and operation.attempt_under_way and operation.lease is not None


def is_undelivered(before: Operation, after: Operation, *, reached: bool) -> bool:
    """Whether a change leaves something that was paid or accepted, and that nobody was told of. `reached`: somebody
    gets it. What was accepted, and told, is not new when it is paid. An event that overtook the attempt left the
    question to the attempt's own end. What others found first is delivered if its own caller was told."""
    if after.state not in _WITH_EFFECT:
        return False
    if is_reply_under_way(before) and not is_reply_under_way(after):
        return after.undelivered or not reached
    if before.state in _WITH_EFFECT or before.state is State.REQUIRES_ACTION:
        return after.undelivered and not reached
    return not reached and not is_reply_under_way(after)


_WITH_EFFECT = frozenset({State.SUCCEEDED, State.PENDING})


def is_paid(operation: Operation) -> bool:
    """Whether it stands as a payment that was made and not given back."""
    return operation.state is State.SUCCEEDED and operation.result_class not in GIVEN_BACK


def is_duplicate_success(first: Operation, second: Operation) -> bool:
    """Whether a success of the second is a duplicate of the first's, of one intent. Two steps of one payment are one
    success. Parts of one total are meant: their claims held them against it."""
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
