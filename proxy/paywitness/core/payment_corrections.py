"""An operator's corrections of a payment: that it exists although it did not come through us, that nobody has paid it,
or a number of its balance. Pure.

No correction moves money. None is allowed while a movement of the payment is open, because the amount that the movement
posts at its end would count twice.
"""

from __future__ import annotations

from dataclasses import replace

from paywitness.core.errors import PaywitnessError
from paywitness.core.payment import PaidElsewhere, Payment, ShownBalance
from paywitness.core.payment_changes import adopted
from paywitness.core.payment_words import major_text
from paywitness.core.record import record
from paywitness.core.result import ResultClass


class CorrectionRefused(PaywitnessError):
    """The correction is not allowed. The text gives the reason and the next step."""


# --- Adopting


def adoption_refusal(payment: Payment) -> str | None:
    """Why a payment whose name is known here cannot be adopted. None: it may be adopted, because operations of ours
    acted on it, but none has made or paid it."""
    if payment.paid or payment.created:
        return f"It is payment {payment.id} of ours, made through here: `ops show {payment.id}` shows it"
    if payment.elsewhere is PaidElsewhere.VERIFIED:
        return f"It was adopted before, as payment {payment.id}: state what is unknown with `ops balance`"
    return open_movement_refusal(payment)


def open_movement_refusal(payment: Payment) -> str | None:
    movement = next(iter(payment.reserved()), None)
    if movement is None:
        return None
    return f"Its {movement.kind} {movement.operation_id} is open: wait for its end, or resolve it first"


def after_adoption(payment: Payment, shown: ShownBalance, result_class: ResultClass) -> Payment:
    """The payment as the provider's object shows it. An object that shows no total shows its own amount."""
    authorised = shown.moved if shown.authorised is None else shown.authorised
    payment = adopted(payment, replace(shown, authorised=authorised))
    if result_class is ResultClass.REVERSED:
        return replace(payment, given_back=True, final=True, expires_at=None)
    if payment.capturable is not None and payment.capturable <= 0:
        return replace(payment, expires_at=None)
    return payment


# --- Declaring that nobody has paid


def declared_unpaid(payment: Payment) -> Payment:
    """The payment after a person has seen that nobody has paid it, although the provider said "already done". Raises
    CorrectionRefused if that is not in question."""
    if payment.paid:
        raise CorrectionRefused(f"It was paid through here, by {payment.paid_by or payment.id}: refund or void it")
    if payment.elsewhere is PaidElsewhere.NO:
        raise CorrectionRefused("Nothing says that it was paid: it keeps nothing from being paid")
    if payment.elsewhere is PaidElsewhere.VERIFIED:
        raise CorrectionRefused("The provider has shown it as paid: state its numbers with `ops balance`")
    if payment.verify_at is not None and not payment.verifications:
        raise CorrectionRefused("The provider is about to be asked for it: declare it if that does not show it")
    refusal = open_movement_refusal(payment)
    if refusal is not None:
        raise CorrectionRefused(refusal)
    return replace(payment, elsewhere=PaidElsewhere.NO, verify_at=None, verifications=0)


# --- Stating numbers


@record
class StatedBalance:
    """Numbers that a person states, in minor units of the payment's currency. None: not stated."""

    authorised: int | None = None
    captured: int | None = None
    refunded: int | None = None
    voided: int | None = None
    disputed: int | None = None

    @property
    def numbers(self) -> dict[str, int]:
        every = {
            "authorised": self.authorised,
            "captured": self.captured,
            "refunded": self.refunded,
            "voided": self.voided,
            "disputed": self.disputed,
        }
        return {name: number for name, number in every.items() if number is not None}


def stated_words(stated: StatedBalance, currency: str) -> str:
    return ", ".join(f"{major_text(number, currency)} {currency} {name}" for name, number in stated.numbers.items())


def after_statement(payment: Payment, stated: StatedBalance, currency: str) -> Payment:
    """The payment with the numbers that were stated. Raises CorrectionRefused if they cannot be true together."""
    refusal = open_movement_refusal(payment)
    if refusal is not None:
        raise CorrectionRefused(refusal)
    if payment.currency is not None and payment.currency != currency:
        raise CorrectionRefused(f"The payment is in {payment.currency}, not in {currency}")
    if any(number < 0 for number in stated.numbers.values()):
        raise CorrectionRefused("A number of a balance is zero or more")
    after = replace(
        payment,
        currency=currency,
        authorised=payment.authorised if stated.authorised is None else stated.authorised,
        captured=payment.captured if stated.captured is None else stated.captured,
        refunded=payment.refunded if stated.refunded is None else stated.refunded,
        voided=payment.voided if stated.voided is None else stated.voided,
        disputed=payment.disputed if stated.disputed is None else stated.disputed,
    )
    if _exceeds(after.captured, after.authorised):
        raise CorrectionRefused("More would be captured than was authorised: state what was authorised too")
    if _exceeds(after.refunded, after.captured):
        raise CorrectionRefused("More would be refunded than was captured: state what was captured too")
    if stated.voided:
        after = replace(after, final=True, expires_at=None, given_back=after.given_back or after.captured == 0)
    if not after.paid:
        exists = bool(after.authorised or after.captured)
        after = replace(after, elsewhere=PaidElsewhere.VERIFIED if exists else after.elsewhere, verify_at=None)
        if after.authorised == 0 and after.captured == 0:
            after = replace(after, elsewhere=PaidElsewhere.NO)  # nobody has paid it
    return after


def _exceeds(part: int | None, whole: int | None) -> bool:
    return part is not None and whole is not None and part > whole
