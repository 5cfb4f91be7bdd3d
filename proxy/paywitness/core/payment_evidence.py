"""Reads a payment's names, totals and dates from a response or an object of the provider. Pure.

The policy names their places (`also_known_as`, `balance`, `captures`, `capture_before`). A value that is missing or
cannot be read is unknown; it never counts as zero.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import Expression, is_false, reference_text
from paywitness.core.errors import MoneyError
from paywitness.core.inquiry import FoundObject, Inquiry
from paywitness.core.money import Unit, read_money
from paywitness.core.operation import Finding, FindingKind, Operation, State
from paywitness.core.payment import FOLLOW_UPS, Payment, PaymentName, ShownBalance, payment_names
from paywitness.core.payment_rules import BalanceFields, IncrementMeaning, PartialCaptures, PaymentRules
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import OperationKind
from paywitness.core.provider_time import time_in
from paywitness.core.result import DOES_NOT_FIT, Classification, Effect, ResultClass

_NAMES_SHOWN_MAX = 10
_MOVEMENTS_SUMMED_MAX = 10  # open movements beside the one to prove; ten have a thousand sums


def shown_balance(
    operation: Operation,
    policy: Policy,
    classification: Classification,
    provider_object: Tree,
    *,
    now: float,
    request_tree: Tree = None,
) -> ShownBalance | None:
    """The names, totals and dates of the operation's payment in this evidence; None if it shows no payment, or not
    ours. `now`: the journal's time. `request_tree`: the body of the call, if the caller has it."""
    if not operation.payment or classification.lost or classification.rule == DOES_NOT_FIT:
        return None
    rules = policy.payment
    names = _names(operation, policy, classification, provider_object)
    currency = _currency(operation, rules, provider_object)
    balance, fit = rules.balance, policy.classify.fit
    totals = (balance.authorised, balance.captured, balance.capturable, balance.refunded, balance.disputed)
    places = [*zip(totals, repeat(balance.unit)), (fit.amount, fit.unit)]
    authorised, captured, capturable, refunded, disputed, moved = _amounts(places, provider_object, currency)
    return ShownBalance(
        names=names,
        creates=not rules.acts_on and not rules.continues,
        currency=currency,
        authorised=authorised,
        captured=captured,
        # An object that is not paid yet shows that nothing can be captured, which proves nothing about this payment.
        capturable=capturable if classification.result_class is ResultClass.SUCCEEDED else None,
        refunded=refunded,
        disputed=disputed,
        moved=moved,
        captures=_captures(rules, provider_object) if policy.kind.pays else None,
        final=_is_final(rules, request_tree) if policy.kind is OperationKind.CAPTURE else None,
        increment_means=rules.increment_means or IncrementMeaning.TOTAL,
        overcapture=rules.overcapture if policy.kind.pays else None,
        expires_at=_expires_at(rules, provider_object, now) if policy.kind.pays else None,
        intent=operation.object_intent,
        dispute=_DISPUTES.get(classification.result_class, ""),
    )


def shown_by_object(
    operation: Operation, policy: Policy, classification: Classification | None, provider_object: Tree, *, now: float
) -> ShownBalance | None:
    """The names, totals and dates of the operation's payment in the object of an inquiry or event. `operation` is as it
    is after that evidence. A success without an object, for example one that a person states, shows the name of the
    payment and the policy's fixed facts about every success. The amount is then the operation's own."""
    if operation.kind in FOLLOW_UPS and operation.state is State.FAILED:
        return ShownBalance(verify_at=now)  # another client may have moved this amount
    if classification is None:
        return None
    if provider_object is None:
        if operation.state is not State.SUCCEEDED:
            return None
        classification = replace(classification, reference=classification.reference or operation.reference)
    return shown_balance(operation, policy, classification, provider_object, now=now)


def shows_totals(operation: Operation, policy: Policy, provider_object: Tree) -> bool:
    """Whether this object can show totals of the operation's payment."""
    is_paying_step = bool(operation.payment) and operation.kind.pays
    return is_paying_step and provider_object is not None and policy.payment.balance != BalanceFields()


def shows_dispute(classification: Classification) -> bool:
    return classification.result_class in _DISPUTES


_DISPUTES = {ResultClass.DISPUTED: "opened", ResultClass.DISPUTE_WON: "won"}


def _names(
    operation: Operation, policy: Policy, classification: Classification, provider_object: Tree
) -> tuple[PaymentName, ...]:
    """The names of the payment. The reference of a follow-up names the movement, not the payment."""
    names = []
    if classification.reference is not None and operation.kind not in FOLLOW_UPS:
        names.append(classification.reference)
    for expression in policy.payment.also_known_as:
        shown = expression(provider_object)
        for value in shown if isinstance(shown, list) else [shown]:
            text = reference_text(value)
            if text is not None:
                names.append(text)
    provider, names = policy.names[0] or policy.provider, names[:_NAMES_SHOWN_MAX]
    found = payment_names(provider, operation.account, names)
    return (*found, *payment_names(provider, "", names)) if policy.payment.continued_without_account else found


def _currency(operation: Operation, rules: PaymentRules, provider_object: Tree) -> str | None:
    if rules.balance.currency is not None:
        shown = rules.balance.currency(provider_object)
        if isinstance(shown, str) and len(shown) == 3 and shown.isalpha():
            return shown.upper()
    return operation.money.currency if operation.money is not None else None


def _amounts(
    places: list[tuple[Expression | None, Unit]], provider_object: Tree, currency: str | None
) -> list[int | None]:
    """Amounts in minor units. Major units cannot be read without a currency."""
    found: list[int | None] = []
    for expression, unit in places:
        shown = expression(provider_object) if expression is not None else None
        is_readable = shown is not None and shown != [] and not (currency is None and unit is Unit.MAJOR)
        try:
            found.append(read_money(shown, currency or "XXX", unit).minor_units if is_readable else None)
        except MoneyError:
            found.append(None)
    return found


def _captures(rules: PaymentRules, provider_object: Tree) -> bool | None:
    if rules.captures is None or isinstance(rules.captures, bool):
        return rules.captures
    if provider_object is None or rules.captures(provider_object) is None:
        return None  # the object does not show it, or there is none (a success from the spool)
    return not is_false(rules.captures(provider_object))


def _is_final(rules: PaymentRules, request_tree: Tree) -> bool | None:
    """Whether this capture releases the remainder."""
    if isinstance(rules.final, bool):
        return rules.final
    if rules.final is not None and request_tree is not None:
        return not is_false(rules.final(request_tree))
    return None if rules.partial is None else rules.partial is PartialCaptures.SINGLE


def _expires_at(rules: PaymentRules, provider_object: Tree, now: float) -> float | None:
    """When the authorization expires: by the object's own date, else by the policy."""
    if rules.capture_before is not None:
        shown = time_in(rules.capture_before(provider_object))
        if shown is not None:
            return shown
    return None if rules.authorization_expires_s is None else now + rules.authorization_expires_s


# --- Proof by a shared object


def proves_movement(operation: Operation, payment: Payment | None, shown: ShownBalance | None) -> bool | None:
    """Whether an object that many movements share, and that reads as done, proves this very movement. Its total must
    have grown by the movement's amount. False: it has not. None: another open movement may have caused the growth."""
    if payment is None or shown is None:
        return True
    movement = payment.movement_of(operation.id)
    reserved_amount = movement.minor_units if movement is not None else None
    amount = operation.money.minor_units if operation.money is not None else reserved_amount
    totals = {
        OperationKind.CAPTURE: (shown.captured, payment.captured),
        OperationKind.REFUND: (shown.refunded, payment.refunded),
    }
    total, known = totals.get(operation.kind, (None, None))
    reserved = payment.reserved_at_most(operation.kind)
    if total is None or reserved is None or amount is None:
        return True
    before = max(known or 0, payment.posted_total(operation.kind))
    if total < before + amount:
        return False
    if known is None:
        return True if total - before == amount == reserved else None  # another client may have moved a part of it
    if total >= before + reserved:
        return True
    others = [other.minor_units or 0 for other in payment.reserved(operation.kind) if other is not movement]
    return _is_part_of_sum(amount, others, total - before)


def _is_part_of_sum(amount: int, others: list[int], moved: int) -> bool | None:
    """Whether the moved amount is a sum of open movements that must include this one. None: there are such sums both
    with it and without it, or none."""
    if len(others) > _MOVEMENTS_SUMMED_MAX:
        return None
    sums = {0}
    for other in others:
        sums |= {known + other for known in sums}
    needs_it, goes_without = moved - amount in sums, moved in sums
    return None if needs_it is goes_without else needs_it


def needs_proof(operation: Operation, seen: FoundObject) -> bool:
    """Whether the finding must be compared with the payment. An object that all movements of a payment share also shows
    "captured" if another movement captured."""
    read = seen.finding.classification
    shares_object = read is not None and read.result_class is ResultClass.SUCCEEDED and read.reference is None
    return shares_object and bool(operation.payment) and operation.kind in FOLLOW_UPS


def held_against_payment(
    operation: Operation,
    policy: Policy,
    seen: FoundObject,
    payment: Payment | None,
    *,
    now: float,
    rolled_back: bool = False,
) -> FoundObject:
    """The finding, if it proves the operation's own movement; else a miss or a failed inquiry. `rolled_back`: the
    journal may have lost other movements of the payment, and the sidecars that know them may not have restored them
    yet."""
    read = seen.finding.classification
    if read is None or not needs_proof(operation, seen):
        return seen
    shown = shown_balance(operation, policy, read, seen.provider_object, now=now)
    proof = proves_movement(operation, payment, shown)
    if proof and not rolled_back:
        return seen
    kind = FindingKind.MISSED if proof is False else FindingKind.FAILED
    detail = "its total has not grown by it" if proof is False else "another movement may have done it"
    return FoundObject(Finding(seen.finding.source, kind, seen.finding.status_code, None, detail))


def shows_another_payment(
    operation: Operation, policy: Policy, inquiry: Inquiry, seen: FoundObject, owner: Payment | None
) -> bool:
    """Whether an inquiry that other operations share found the object of another payment. `owner`: the payment that has
    the reference in the finding."""
    makes_payment = not policy.payment.acts_on and not policy.payment.continues
    is_taken = owner is not None and owner.created and owner.id != operation.payment
    return seen.finding.kind is FindingKind.HIT and inquiry.shared and makes_payment and is_taken


def held_against_names(
    operation: Operation,
    policy: Policy,
    inquiry: Inquiry,
    seen: FoundObject,
    payment: Payment | None,
    owner: Payment | None,
) -> FoundObject:
    """The finding, unless the names that we know contradict it; then a failed inquiry. `payment`: the operation's own.
    `owner`: the payment that has the reference in the finding."""
    finding = seen.finding
    if shows_another_payment(operation, policy, inquiry, seen, owner):
        detail = "its reference belongs to another payment"
        return FoundObject(Finding(finding.source, FindingKind.FAILED, finding.status_code, None, detail))
    names_target = bool(policy.payment.acts_on) and inquiry.names_in_path("path", "body")
    was_shown = payment is not None and (payment.created or payment.paid)
    if finding.kind is FindingKind.MISSED and finding.status_code == 404 and names_target and was_shown:
        detail = "not found, although the provider has shown it"
        return FoundObject(Finding(finding.source, FindingKind.FAILED, 404, None, detail), gone=True)
    return seen


# --- "Already done"


def without_doubt_of_others(
    classification: Classification,
    operation: Operation,
    policy: Policy,
    payment: Payment | None,
    *,
    rolled_back: bool,
) -> Classification:
    """The classification of "already done" as the response to the first attempt that may have had an effect. If the
    operation names the payment that it acts on, no earlier attempt of ours on that payment is unanswered, and the
    journal has lost nothing, then another client did it: a refusal without effect. `payment` is as it was before the
    operation was claimed."""
    is_first = not operation.doubt and operation.state is State.SENDING  # earlier attempts had no effect
    if classification.result_class is not ResultClass.ALREADY_DONE or not is_first or not policy.payment.acts_on:
        return classification
    if payment is None or payment.unanswered or payment.reserved() or rolled_back:
        return classification
    return replace(classification, effect=Effect.NONE, rule=f"{classification.rule}, not by us")


def after_already_done(
    operation: Operation, shown: ShownBalance | None, classification: Classification, policy: Policy, *, now: float
) -> tuple[Operation, ShownBalance | None]:
    """The operation after a response of its own, in time or late, and the response's names and totals. If the response
    means that another client has moved the payment, a verification becomes due. A paying operation then counts as paid
    elsewhere, and holds its intent, until an inquiry has read the object."""
    is_refusal = classification.result_class is ResultClass.ALREADY_DONE and classification.effect is Effect.NONE
    if not is_refusal or not operation.payment or operation.state is not State.FAILED:
        return operation, shown
    shown = replace(shown or ShownBalance(), verify_at=now + policy.resolve.schedule_s[0])
    is_paid = policy.kind.pays and bool(policy.payment.acts_on)
    return operation.changed(paid_elsewhere=True) if is_paid else operation, shown
