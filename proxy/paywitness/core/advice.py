"""Advice that is safe for the end customer. The effect decides before the class: a customer who was provably not
charged is never told not to pay again. A policy may refine the advice for a code of the provider (`advice`). It reveals
nothing about the provider.
"""

from __future__ import annotations

from paywitness.core.guard import GIVEN_BACK
from paywitness.core.operation import Operation, State
from paywitness.core.problems import Problem
from paywitness.core.result import ADVICE, Advice, ResultClass

# Advice for classes that leave open whether money moved, if it is known that none did.
_WITHOUT_EFFECT = {
    ResultClass.IDEMPOTENCY_CONFLICT: Advice.CONTACT_SUPPORT,  # the service used one key for two payments
}
# Problems after which an earlier call may have paid, even if its operation cannot be named here.
# The last two: a call that is no operation may still move money; and a payment may have paid whose operation is no
# longer kept.
MAY_BE_PAID = frozenset(
    {
        Problem.UNKNOWN,
        Problem.JOURNAL_UNAVAILABLE,
        Problem.ACCOUNT_UNKNOWN,
        Problem.KEY_EXPIRED,
        Problem.FORWARD_FAILED,
        Problem.GUARDED,
    }
)
_TRY_LATER = frozenset({Problem.NOT_SENT, Problem.TOO_SLOW, Problem.CAP_EXCEEDED, Problem.APPROVAL_NEEDED})


def advice_of_problem(kind: Problem, operation: Operation | None) -> Advice:
    """The end customer's advice with a problem of ours. `operation`: the one that the problem names."""
    if kind in {Problem.KEY_REUSED, Problem.REFUNDED}:
        return Advice.CONTACT_SUPPORT  # a person has to say whether another payment is meant
    if operation is not None:
        return advice_for(operation)
    if kind in _TRY_LATER:
        return Advice.TRY_AGAIN_LATER
    return Advice.DO_NOT_PAY_AGAIN if kind in MAY_BE_PAID else Advice.CONTACT_SUPPORT


def advice_for(operation: Operation) -> Advice:
    """The end customer's advice about the operation in its present state."""
    if operation.incident is not None:
        return Advice.DO_NOT_PAY_AGAIN
    if operation.state is State.FAILED:
        return _after_failure(operation)
    if operation.state is State.REQUIRES_ACTION:
        return Advice.AUTHENTICATE
    if operation.state is State.SUCCEEDED and operation.result_class in GIVEN_BACK:
        return Advice.CONTACT_SUPPORT
    return Advice.DO_NOT_PAY_AGAIN


def _after_failure(operation: Operation) -> Advice:
    if operation.beside_unknown or operation.result_class is ResultClass.ALREADY_DONE:
        return Advice.DO_NOT_PAY_AGAIN  # an earlier step of the payment may have paid, or somebody else has
    if operation.advice is not None:
        return operation.advice
    if operation.result_class is None:
        return Advice.TRY_AGAIN_LATER
    by_class = ADVICE[operation.result_class]
    if by_class is not Advice.DO_NOT_PAY_AGAIN:
        return by_class
    return _WITHOUT_EFFECT.get(operation.result_class, Advice.TRY_AGAIN_LATER)
