"""Payments as ledger rows, and how a claim or a record changes them. Pure.

A row's text is JSON without empty fields. Every store runs these functions between its read and its write, as it does
those of `claim_plan` and `transitions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from paywitness.core.claim import ClaimRequest
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.money import Money
from paywitness.core.operation import Guard, GuardKind, Operation, OtherPayment, Posting, RepeatPaymentRule, State
from paywitness.core.payment import (
    FOLLOW_UPS,
    Movement,
    MovementStatus,
    PaidElsewhere,
    Payment,
    PaymentName,
    ShownBalance,
    name_key,
    payment_key,
    payment_names,
)
from paywitness.core.payment_changes import after_change, merged_payment, reconciled, with_names
from paywitness.core.payment_claims import IntentHold, carried_guard, hold_of_payment, with_money
from paywitness.core.payment_rollback import after_rollback, with_unknown_numbers
from paywitness.core.payment_rules import Overcapture
from paywitness.core.provider_contract import OperationKind
from paywitness.core.record import record
from paywitness.journal.base import OWN_ROWS, LedgerRow

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode

EXPIRY_NOTICE_S = 86_400.0  # an authorization that expires within a day is announced


class RowLookups(Protocol):
    """The look-ups of a plan in the ledger."""

    def row(self, key: str) -> LedgerRow | None:
        """The row under exactly this key. A link is not followed."""
        ...


class OperationLookups(RowLookups, Protocol):
    """The look-ups of a plan in the ledger and in the operations behind it."""

    def by_id(self, operation_id: str) -> Operation | None: ...


# --- Text

# Field, key in the text, and the empty value.
_PLAIN_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("currency", "currency", None),
    ("authorised", "authorised", None),
    ("captured", "captured", None),
    ("refunded", "refunded", None),
    ("voided", "voided", None),
    ("disputed", "disputed", None),
    ("created", "created", False),
    ("paid", "paid", False),
    ("final", "final", False),
    ("paid_by", "paid_by", ""),
    ("times_paid", "times_paid", 0),
    ("given_back", "given_back", False),
    ("returned", "returned", False),
    ("unanswered", "unanswered", False),
    ("expires_at", "expires_at", None),
    ("expiry_announced", "expiry_announced", ""),
    ("verify_at", "verify_at", None),
    ("verifications", "verifications", 0),
    ("verify_misses", "verify_misses", 0),
)


def payment_to_text(payment: Payment) -> str:
    value: dict[str, Any] = {"provider": payment.provider, "account": payment.account}
    if payment.names:
        value["names"] = payment.names
    if payment.intent is not None:
        guard = payment.intent
        value["intent"] = (guard.value, guard.label, guard.after_success, guard.during_action)
    for field, key, empty in _PLAIN_FIELDS:
        known = getattr(payment, field)
        if known != empty:
            value[key] = known
    if payment.elsewhere:
        value["elsewhere"] = payment.elsewhere
    if payment.overcapture is not None:
        above = payment.overcapture
        value["overcapture"] = (above.share_bp, [(bound.minor_units, bound.currency) for bound in above.at_most])
    if payment.steps:
        value["steps"] = payment.steps
    if payment.movements:
        value["movements"] = [_movement_to_value(movement) for movement in payment.movements]
    return _encode(value)


def _movement_to_value(movement: Movement) -> tuple[Any, ...]:
    value = (movement.operation_id, movement.kind, movement.minor_units, movement.status, movement.fingerprint)
    return (*value, True) if movement.at_most else value


def payment_from_row(row: LedgerRow) -> Payment:
    """The payment in a row. A word that only a newer version knows is read as the most careful one."""
    value = _decode(row.text)
    intent = value.get("intent")
    return Payment(
        id=row.key.removeprefix("p:"),
        provider=value["provider"],
        account=value["account"],
        names=tuple(value.get("names", ())),
        intent=None if intent is None else _intent_from_value(intent),
        elsewhere=_word(PaidElsewhere, value.get("elsewhere", ""), PaidElsewhere.UNVERIFIED),
        overcapture=_overcapture_from_value(value.get("overcapture")),
        steps=tuple(value.get("steps", ())),
        movements=tuple(_movement_from_value(*each[:6]) for each in value.get("movements", ())),
        **{field: value.get(key, empty) for field, key, empty in _PLAIN_FIELDS},
    )


def _intent_from_value(value: list[str]) -> Guard:
    text, label, after_success, during_action = value[:4]
    rules = [_word(RepeatPaymentRule, word, RepeatPaymentRule.BLOCK) for word in (after_success, during_action)]
    return Guard(GuardKind.INTENT, text, label, *rules)


def _overcapture_from_value(value: list[Any] | None) -> Overcapture | None:
    return None if value is None else Overcapture(value[0], tuple(Money(*bound[:2]) for bound in value[1]))


def _movement_from_value(
    operation_id: str, kind: str, minor_units: int | None, status: str, fingerprint: str, at_most: bool = False
) -> Movement:
    return Movement(
        operation_id,
        _word(OperationKind, kind, OperationKind.REVERSAL),
        minor_units,
        _word(MovementStatus, status, MovementStatus.RESERVED),
        fingerprint,
        at_most,
    )


def _word(words: Any, text: str, safest: Any) -> Any:
    try:
        return words(text)
    except ValueError:
        return safest


def payment_row(payment: Payment, before: LedgerRow | None) -> LedgerRow:
    """The payment's row, to be written over the one before."""
    version = 1 if before is None else before.version + 1
    return LedgerRow(payment_key(payment.id), version, payment_to_text(payment), due_of(payment))


def due_of(payment: Payment) -> float | None:
    """When the payment is due: for a verification, or for the announcement that its authorization expires."""
    times = [] if payment.verify_at is None else [payment.verify_at]
    if payment.expires_at is not None and payment.expiry_announced != "expired":
        times.append(payment.expires_at - (EXPIRY_NOTICE_S if not payment.expiry_announced else 0.0))
    return min(times, default=None)


LINKS_MAX = 8  # links that are followed from a name, or from the id of a payment that was merged into another one


def intent_key(guard: str) -> str:
    return f"i:{guard}"


# --- What people did with a payment

COMMANDS_KEPT_MAX = 100  # the newest commands on one payment


@record
class PaymentCommandEntry:
    """One operator command on a payment: who did what, and why. It is kept with the payment, because the payment may
    have no operation of ours."""

    at: float
    actor: str
    action: str  # adopt, balance, not-paid
    reason: str
    evidence: str = ""
    stated: str = ""  # the facts that the operator stated about the payment, in words


def commands_key(payment_id: str) -> str:
    return f"o:{payment_id}"


def commands_row(payment_id: str, entry: PaymentCommandEntry, before: LedgerRow | None) -> LedgerRow:
    """The row of commands with one more."""
    entries = [] if before is None else _decode(before.text)
    value = [entry.at, entry.actor, entry.action, entry.reason, entry.evidence, entry.stated]
    version = 1 if before is None else before.version + 1
    return LedgerRow(commands_key(payment_id), version, _encode([*entries, value][-COMMANDS_KEPT_MAX:]))


def payment_commands(row: LedgerRow | None) -> tuple[PaymentCommandEntry, ...]:
    return () if row is None else tuple(PaymentCommandEntry(*entry[:6]) for entry in _decode(row.text))


def link_row(key: str, payment_id: str) -> LedgerRow:
    return LedgerRow(key, 1, f"@{payment_key(payment_id)}")


def restored_rows(operation: Operation, lookups: RowLookups, now: float) -> tuple[LedgerRow, ...]:
    """The rows of a payment that the journal has lost together with an operation that is put back. If another call has
    acted on the payment's name meanwhile, it has made another row. Both rows are then one payment, and are merged."""
    if not operation.payment:
        return ()
    own = payment_by_id(lookups, operation.payment)
    payment = Payment(operation.payment, operation.provider, operation.account) if own is None else own.payment
    row, links = None if own is None else own.row, list[LedgerRow]()
    text = operation.acts_on or ("" if operation.kind in FOLLOW_UPS else operation.reference or "")
    [name] = payment_names(operation.provider_in_keys, operation.account, [text])
    named = payment_by_name(lookups, name) if text else None
    if text and named is None:
        payment, links = with_names(payment, (name,)), [link_row(name.key, payment.id)]
    elif named is not None and named.payment.id != payment.id:
        is_seen = named.payment.created or named.payment.paid or named.payment.elsewhere
        if is_seen and (own is not None or not operation.acts_on):
            return ()  # the name belongs to another payment
        if is_seen:
            links = [link_row(payment_key(operation.payment), named.payment.id)]
            payment, row = named.payment, named.row
        else:
            links = list(_rows_of_merged(named, payment.id, lookups, operation))
            payment = merged_payment(payment, named.payment)
    after = after_rollback(payment, operation, now)
    if row is not None and not links and after == payment:
        return ()
    return (payment_row(after, row), *links)


def may_forget(row: LedgerRow, linked: LedgerRow | None) -> bool:
    """Whether an old row may be deleted. It stays if it is a name of a payment that stays, a payment with a reserved
    movement, or a row of the journal itself."""
    if row.text.startswith("@"):
        return linked is None
    if row.key in OWN_ROWS:
        return False
    return not row.key.startswith("p:") or not payment_from_row(row).reserved()


# --- Looking up


@record
class FoundPayment:
    payment: Payment
    row: LedgerRow


def followed(row: LedgerRow | None, read: Callable[[str], LedgerRow | None]) -> LedgerRow | None:
    """The row at the end of the links that begin with this one. There may be several links, because a payment can be
    merged into another one more than once."""
    for _ in range(LINKS_MAX):
        if row is None or not row.text.startswith("@"):
            break
        row = read(row.text[1:])
    return row


def payment_by_id(lookups: RowLookups, payment_id: str) -> FoundPayment | None:
    row = lookups.row(payment_key(payment_id))
    row = row and followed(row, lookups.row)
    return None if row is None else FoundPayment(payment_from_row(row), row)


def payment_by_name(lookups: RowLookups, name: PaymentName) -> FoundPayment | None:
    return _linked_payment(lookups.row(name.key), lookups)


def _linked_payment(link: LedgerRow | None, lookups: RowLookups) -> FoundPayment | None:
    if link is None or not link.text.startswith("@"):
        return None
    return payment_by_id(lookups, link.text[1:].removeprefix("p:"))


BehindPayment = Callable[[Payment], Mapping[str, Operation]]  # the operations of a payment's reserved movements, by id


def operations_behind(lookups: OperationLookups) -> BehindPayment:
    """The operations of a payment's reserved movements, as the journal holds them."""

    def behind(payment: Payment) -> Mapping[str, Operation]:
        found = (lookups.by_id(movement.operation_id) for movement in payment.reserved())
        return {operation.id: operation for operation in found if operation is not None}

    return behind


def payment_holds(lookups: RowLookups, operations: Iterable[Operation], behind: BehindPayment) -> dict[str, IntentHold]:
    """Whether the payments of these operations hold their intent, by operation id. An operation whose payment has no
    row is left out. A reserved movement does not count if an expired lease has ended its operation. The payment's row
    does not show that yet, so the operations are read too."""
    holds: dict[str, IntentHold] = {}
    for operation in operations:
        if not operation.payment or not operation.kind.pays:
            continue
        found = payment_by_id(lookups, operation.payment)
        if found is not None:
            holds[operation.id] = hold_of_payment(reconciled(found.payment, behind(found.payment)))
    return holds


# --- Claims


@record
class PaymentTarget:
    """The payment that a call acts on, and the operation that would start, with the fields that the payment adds."""

    fresh: Operation
    payment: Payment | None = None
    row: LedgerRow | None = None  # None: the payment is not known yet


def target_of(request: ClaimRequest, lookups: RowLookups) -> PaymentTarget:
    """The payment that the call acts on. If the journal does not know it, it is created under the name in the call,
    with unknown numbers. A step gets the intent of its payment if it names none itself."""
    fresh, name = request.fresh, request.payment.acts_on
    if request.payment.intent is not None:
        fresh = fresh.changed(object_intent=request.payment.intent)
    if name is None:
        return PaymentTarget(fresh)
    found = payment_by_name(lookups, name)
    if found is None:
        payment = Payment(fresh.id, fresh.provider, fresh.account, (name.name,))
    else:
        payment = found.payment
    fresh = with_money(payment, fresh.changed(payment=payment.id, acts_on=name.name), request.payment)
    if fresh.kind.pays:
        names_intent = fresh.guard is not None and fresh.guard.kind is GuardKind.INTENT
        if names_intent:
            payment = replace(payment, intent=fresh.guard)
        elif payment.intent is not None:
            fresh = fresh.changed(guard=carried_guard(payment.intent, request.payment))
    return PaymentTarget(fresh, payment, None if found is None else found.row)


# --- Records


@record
class PaymentWrite:
    """An operation's change and the change of its payment that follows from it."""

    operation: Operation  # with its payment's id, and with the incident that the change opens, if any
    payment: Payment
    rows: tuple[LedgerRow, ...] = ()
    posting: Posting | None = None
    elsewhere: bool = False  # no call of ours made the movement of the posting
    note: str = ""


def plan_payment(
    operation: Operation, shown: ShownBalance, lookups: RowLookups, forgotten_at: float | None = None
) -> PaymentWrite:
    """The payment after a change of the operation, and the rows to be written. A name that belongs to another payment
    never fails the record: the evidence is recorded without it. `forgotten_at`: the time of the change, if the journal
    may have forgotten movements of the payment."""
    own = payment_by_id(lookups, operation.payment)
    own_id = operation.payment if own is None else own.payment.id  # another id if the payment was merged into another
    free, taken, unlinked = _split_names(own_id, shown, lookups)
    merged: tuple[LedgerRow, ...] = ()
    note = ""
    if taken and _is_same_payment(own, taken[0][1], shown):
        other = taken[0][1]
        if own is not None:
            merged = _rows_of_merged(own, other.payment.id, lookups, operation)
            other = FoundPayment(merged_payment(other.payment, own.payment), other.row)
        own, operation = other, operation.changed(payment=other.payment.id)
        free, taken = (*free, *(name for name, found in taken if found.payment.id == other.payment.id)), ()
    if taken:
        note = f"its reference belongs to payment {taken[0][1].payment.id}"
        operation = _without_reference(operation, taken)
    payment = own.payment if own is not None else Payment(operation.payment, operation.provider, operation.account)
    if payment.intent is None and operation.guard is not None and operation.guard.kind is GuardKind.INTENT:
        payment = replace(payment, intent=operation.guard)
    if forgotten_at is not None:
        payment = with_unknown_numbers(payment, forgotten_at)
    change = after_change(payment, operation, replace(shown, names=free))
    if change.negative and operation.incident is None:
        with_payment = _other_payment(change.payment, operation)
        operation = operation.changed(incident=IncidentKind.NEGATIVE_REMAINDER, other_payment=with_payment)
    rows: list[LedgerRow] = []
    is_found = bool(change.payment.names or change.payment.movements or change.payment.elsewhere)
    if is_found and (own is None or merged or change.payment != own.payment):
        rows.append(payment_row(change.payment, None if own is None else own.row))
        for key in unlinked:
            rows.append(link_row(key, change.payment.id))
    return PaymentWrite(operation, change.payment, (*rows, *merged), change.posting, change.elsewhere, note)


_TakenNames = tuple[tuple[PaymentName, FoundPayment], ...]


def _split_names(
    payment_id: str, shown: ShownBalance, lookups: RowLookups
) -> tuple[tuple[PaymentName, ...], _TakenNames, tuple[str, ...]]:
    """Three groups: the names that belong to this payment or to none, the names that belong to another payment, and the
    keys of names that have no row yet."""
    free: tuple[PaymentName, ...] = ()
    taken: _TakenNames = ()
    unlinked: tuple[str, ...] = ()
    for name in shown.names:
        link = lookups.row(name.key)
        other = None if link is None else _linked_payment(link, lookups)
        if other is None or other.payment.id == payment_id:
            free = (*free, name)
        else:
            taken = (*taken, (name, other))
        if link is None:
            unlinked = (*unlinked, name.key)
    return free, taken, unlinked


def _is_same_payment(own: FoundPayment | None, other: FoundPayment, shown: ShownBalance) -> bool:
    """Whether two payments that show the same name are one payment. They are if the operation that creates the object
    shows its name only after a step has acted on it, or if a follow-up used another name than the operation that
    created the payment. Two operations that each create an object are two payments."""
    if own is None:
        return not (shown.creates and other.payment.created)
    made_by_name = not own.payment.created and not own.payment.paid and not own.payment.elsewhere
    return made_by_name and not shown.creates


def _rows_of_merged(
    own: FoundPayment, other_id: str, lookups: RowLookups, operation: Operation
) -> tuple[LedgerRow, ...]:
    """The links that replace the rows of a payment that is merged into the other one."""
    target = f"@{payment_key(other_id)}"
    names = (name_key(operation.provider_in_keys, operation.account, name) for name in own.payment.names)
    links = [own.row, *(row for key in names if (row := lookups.row(key)) is not None)]
    return tuple(LedgerRow(row.key, row.version + 1, target) for row in links)


def _without_reference(operation: Operation, taken: _TakenNames) -> Operation:
    """The operation without a reference that belongs to another payment. If both have paid, an incident opens."""
    both_paid = operation.kind.pays and operation.state is State.SUCCEEDED and taken[0][1].payment.paid
    is_taken = operation.reference in {name.name for name, _ in taken}
    reference = None if is_taken else operation.reference
    if not both_paid or operation.incident is not None:
        return operation.changed(reference=reference)
    name, found = taken[0]
    other = replace(_other_payment(found.payment, operation), reference=name.name)
    return operation.changed(reference=reference, incident=IncidentKind.REFERENCE_TAKEN, other_payment=other)


def _other_payment(payment: Payment, operation: Operation) -> OtherPayment:
    """The payment, as an operation's incident names it. Its amount is the captured one if the operation refunds, and
    the authorised one otherwise."""
    refunds = operation.kind in {OperationKind.REFUND, OperationKind.REVERSAL}
    had = payment.captured if refunds else payment.authorised
    money = Money(had, payment.currency) if had is not None and payment.currency else None
    name = payment.names[0] if payment.names else None
    return OtherPayment(payment.paid_by or payment.id, payment.provider, name, money)
