"""The bugs that are planted in the rules between operations: limits, reservations, intents, references, names.

They are hunted in worlds with the money between operations, and caught by the promises of `money_checkers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paywitness.core.claim import ClaimRequest
from paywitness.core.guard import GIVEN_BACK
from paywitness.core.money import Money
from paywitness.core.operation import Operation
from paywitness.core.payment import Movement, MovementStatus, Payment, ShownBalance
from paywitness.core.payment_claims import IntentHold, LimitCheck, LimitVerdict, PaymentClaim, PaymentVerdict
from paywitness.core.provider_contract import OperationKind
from tests.simulation.planting import Bug, Change, Function, Replaced

WITHIN = ("captured within authorised", "refunded within captured")
PAID_AGAIN = ("an order is paid once", "a paid order is remembered")
ONE_MOVEMENT = "one effect for one movement"
ITS_OWN_LINE = "a success has its own line"
FREE = "a free order can be paid"

_CORE, _JOURNAL = "paywitness.core.", "paywitness.journal."


def bug(name: str, what: str, *changes: Change, breaks: tuple[str, ...], focus: str = "") -> Bug:
    return Bug(name, what, changes, breaks, between=True, focus=focus)


# --- limits and reservations


def _always_fits(right: Function) -> Function:
    def wrong(payment: Payment, kind: OperationKind, money: Money | None) -> LimitCheck:
        return LimitCheck(LimitVerdict.FITS)

    return wrong


def _counts_no_reservation(right: Function) -> Function:
    def wrong(payment: Payment, kind: OperationKind) -> tuple[int | None, int | None]:
        _, released = right(payment, kind)
        return released, released

    return wrong


def _reserves_nothing(right: Function) -> Function:
    def wrong(payment: Payment, fresh: Operation, claim: PaymentClaim) -> Payment:
        reserved: Payment = right(payment, fresh, claim)
        return replace(reserved, movements=payment.movements)

    return wrong


def _doubt_reserves_nothing(right: Function) -> Function:
    def wrong(payment: Payment, operations: Mapping[str, Operation]) -> Payment:
        known: Payment = right(payment, operations)
        doubted = {operation.id for operation in operations.values() if operation.state.in_doubt}
        kept = tuple(one for one in known.movements if one.operation_id not in doubted)
        return replace(known, movements=kept)

    return wrong


# --- movements beside each other


def _never_in_the_way(right: Function) -> Function:
    def wrong(movement: Movement, holder: Operation, fresh: Operation, amount: int | None) -> PaymentVerdict:
        return PaymentVerdict.PASS

    return wrong


def _equal_one_passes(right: Function) -> Function:
    def wrong(movement: Movement, holder: Operation, fresh: Operation, amount: int | None) -> PaymentVerdict:
        verdict: PaymentVerdict = right(movement, holder, fresh, amount)
        is_equal = movement.kind is fresh.kind and verdict is PaymentVerdict.OPEN
        return PaymentVerdict.PASS if is_equal else verdict

    return wrong


# --- intents


def _never_freed(right: Function) -> Function:
    def wrong(payment: Payment) -> IntentHold:
        hold: IntentHold = right(payment)
        return IntentHold.PAID if hold in {IntentHold.REFUNDED, IntentHold.GIVING_BACK} else hold

    return wrong


def _freed_by_a_part(right: Function) -> Function:
    def wrong(payment: Payment) -> IntentHold:
        hold: IntentHold = right(payment)
        return IntentHold.REFUNDED if hold is IntentHold.PAID and payment.refunded else hold

    return wrong


def _freed_by_any_void(right: Function) -> Function:
    def wrong(payment: Payment) -> IntentHold:
        hold: IntentHold = right(payment)
        posted = {one.kind for one in payment.movements if one.status is MovementStatus.POSTED}
        return IntentHold.REFUNDED if hold is IntentHold.PAID and OperationKind.VOID in posted else hold

    return wrong


def _carries_no_intent(right: Function) -> Function:
    def wrong(request: ClaimRequest, lookups: Any) -> Any:
        target = right(request, lookups)
        return replace(target, fresh=target.fresh.changed(guard=request.fresh.guard))

    return wrong


def _remembers_nobody(right: Function) -> Function:
    def wrong(row: Any, lookups: Any, behind: Any) -> str | None:
        return None

    return wrong


# --- payouts


def _keeps_no_transfer(right: Function) -> Function:
    def wrong(operation: Operation) -> bool:
        return False

    return wrong


def _keeps_a_bounced_transfer(right: Function) -> Function:
    def wrong(operation: Operation) -> bool:
        if operation.kind is OperationKind.PAYOUT and operation.result_class in GIVEN_BACK:
            operation = operation.changed(result_class=None)
        kept: bool = right(operation)
        return kept

    return wrong


def _stands_though_it_bounced(right: Function) -> Function:
    def wrong(holder: Operation, payment_holds: Mapping[str, IntentHold]) -> IntentHold:
        if holder.kind is OperationKind.PAYOUT:
            return IntentHold.PAID
        standing: IntentHold = right(holder, payment_holds)
        return standing

    return wrong


# --- what the provider shows


def _always_proves(right: Function) -> Function:
    def wrong(operation: Operation, payment: Payment | None, shown: ShownBalance | None) -> bool | None:
        return True

    return wrong


_CLAIMS, _EVIDENCE, _PAYMENT = _CORE + "payment_claims.", _CORE + "payment_evidence.", _CORE + "payment_changes."

MONEY_BUGS: tuple[Bug, ...] = (
    bug(
        "limits_ignored",
        "every capture and refund is within its limit",
        Replaced(_CLAIMS + "check_limit", _always_fits),
        breaks=WITHIN,
    ),
    bug(
        "reservations_not_counted",
        "a reserved amount counts as available",
        Replaced(_CLAIMS + "_remaining", _counts_no_reservation),
        breaks=WITHIN,
    ),
    bug(
        "reservation_not_written",
        "a claim does not write its movement to the payment",
        Replaced(_CLAIMS + "with_reservation", _reserves_nothing),
        breaks=(*WITHIN, ONE_MOVEMENT, "no void beside a capture"),
    ),
    bug(
        "doubt_reserves_nothing",
        "a movement in doubt is no longer reserved",
        Replaced(_PAYMENT + "reconciled", _doubt_reserves_nothing),
        breaks=(*WITHIN, ONE_MOVEMENT, "no void beside a capture"),
        focus="movements",
    ),
    bug(
        "movements_in_flight_together",
        "an open movement blocks no other one",
        Replaced(_CLAIMS + "_against", _never_in_the_way),
        breaks=(ONE_MOVEMENT, "no void beside a capture"),
    ),
    bug(
        "equal_movement_passes",
        "an equal movement under a fresh key passes while the first is open",
        Replaced(_CLAIMS + "_against", _equal_one_passes),
        breaks=(ONE_MOVEMENT,),
    ),
    bug(
        "refund_frees_nothing",
        "a payment that was given back still counts as paid",
        Replaced(_CLAIMS + "hold_of_payment", _never_freed),
        breaks=(FREE, "a success stands"),
    ),
    bug(
        "part_refund_frees",
        "a refund of a part frees the intent",
        Replaced(_CLAIMS + "hold_of_payment", _freed_by_a_part),
        breaks=PAID_AGAIN,
    ),
    bug(
        "void_of_the_rest_frees",
        "a void after a partial capture frees the intent",
        Replaced(_CLAIMS + "hold_of_payment", _freed_by_any_void),
        breaks=PAID_AGAIN,
    ),
    bug(
        "intent_not_carried",
        "a confirm does not have the intent of the call that opened its payment",
        Replaced(_JOURNAL + "ledger.target_of", _carries_no_intent),
        breaks=PAID_AGAIN,
    ),
    bug(
        "retired_payment_forgotten",
        "an intent or a payout reference is free once its operations are retired",
        Replaced(_JOURNAL + "tombstones.remembered_payer", _remembers_nobody),
        breaks=("a paid order is remembered",),
    ),
    bug(
        "payout_reference_forgotten",
        "a payout's reference is free once it was answered",
        Replaced(_CORE + "guard._is_kept_transfer", _keeps_no_transfer),
        breaks=("one transfer per reference",),
    ),
    bug(
        "bounced_payout_kept",
        "a payout that was returned still holds its reference",
        Replaced(_CORE + "guard._is_kept_transfer", _keeps_a_bounced_transfer),
        Replaced(_CORE + "claim._standing", _stands_though_it_bounced),
        breaks=(FREE,),
    ),
    bug(
        "shared_object_proves",
        "a payment that shows a capture proves any capture of it",
        Replaced(_EVIDENCE + "proves_movement", _always_proves),
        breaks=(ITS_OWN_LINE, "doubt not guessed away"),
    ),
)
