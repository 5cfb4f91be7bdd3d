"""The payment behind an operation: which payment it acts on, how its numbers are read, and which rules they keep."""

from __future__ import annotations

from paywitness.core.bodies.tree import Encoding
from paywitness.core.classify import Expression
from paywitness.core.money import Unit
from paywitness.core.payment_rules import (
    BalanceFields,
    IncrementMeaning,
    LimitMode,
    Overcapture,
    PartialCaptures,
    PaymentRules,
)
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind
from paywitness.policy.reading.expressions import expression, expression_over
from paywitness.policy.reading.locations import did_you_mean, listed
from paywitness.policy.reading.section import Layers, Section
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    Reader,
    choice_of,
    duration,
    field_ref,
    money,
    one_of,
    percentage,
    yes_or_no,
)
from paywitness.policy.schema import BALANCE, OVERCAPTURE

_DAY_S = 86400.0
_OVERCAPTURE_MAX_PERCENT = 100.0  # as much again: no provider allows more
_EXPIRY_MAX_S = 400 * _DAY_S  # as long as payments are stored

_PAYS = tuple(kind for kind in OperationKind if kind.pays)
_STEPS = (*_PAYS, OperationKind.NONE)
_HAS_PAYMENT = tuple(kind for kind in OperationKind if kind is not OperationKind.PAYOUT)
# The kinds of operations for which a key has a meaning. In any other kind the key would be ignored silently.
_KINDS: dict[str, tuple[OperationKind, ...]] = {
    "payment": _HAS_PAYMENT,
    "captures": _PAYS,
    "balance": _HAS_PAYMENT,
    "limits": tuple(kind for kind in _HAS_PAYMENT if kind.moves_money),
    "overcapture": _PAYS,
    "means": (OperationKind.INCREMENT,),
    "final": (OperationKind.CAPTURE,),
    "partial": (OperationKind.CAPTURE,),
    "continues": _STEPS,
    "once_per_target": _STEPS,
    "failed_after_success": (
        OperationKind.SALE,
        OperationKind.CAPTURE,
        OperationKind.REFUND,
        OperationKind.REVERSAL,
        OperationKind.PAYOUT,
    ),
    "intent_total": _STEPS,
    "intent_at": _STEPS,
    "authorization_expires": _PAYS,
    "capture_before": (*_STEPS, OperationKind.INCREMENT),
}
_BALANCE_AMOUNTS = ("authorised", "captured", "capturable", "refunded", "disputed")
read_limit_mode = one_of(LimitMode)
read_target = field_ref(FieldKind.PATH, FieldKind.BODY, FieldKind.HEADER)


def read_payment(section: Section, file: Section, encoding: Encoding, target: FieldRef | None) -> PaymentRules:
    """The operation's rules about its payment. `target` names the payment unless `payment` does."""
    kind = section.read("kind", one_of(OperationKind))
    acts_on = section.read_list("payment", read_target, single=True)
    if not section.has("payment") and target is not None and kind is not OperationKind.PAYOUT:
        acts_on = (target,)
    over_request, over_response = expression_over(encoding), expression
    rules = PaymentRules(
        acts_on=acts_on,
        also_known_as=section.read_list("also_known_as", expression, single=True),
        captures=section.read("captures", _word_or({"automatic": True, "manual": False}, over_response)),
        balance=_read_balance(section),
        limits=Layers(section, file).read_or("limits", read_limit_mode, LimitMode.WARN),
        overcapture=_read_overcapture(section),
        increment_means=section.read("means", one_of(IncrementMeaning)),
        final=section.read("final", _word_or({"yes": True, "no": False, "true": True, "false": False}, over_request)),
        partial=section.read("partial", one_of(PartialCaptures)),
        continues=section.read_or("continues", yes_or_no, default=False),
        once_per_target=section.read_or("once_per_target", yes_or_no, default=False),
        failed_is_return=section.read("failed_after_success", choice_of("incident", "returned")) == "returned",
        intent_total=section.read("intent_total", expression),
        intent_at=section.read("intent_at", expression),
        authorization_expires_s=section.read("authorization_expires", duration(1.0, _EXPIRY_MAX_S)),
        capture_before=section.read("capture_before", expression),
    )
    if kind is not None:
        _check_kinds(section, kind)
        _check_expiry(section, kind, rules)
    _check_company(section, rules)
    return rules


def _word_or(words: dict[str, bool], reader: Reader[Expression]) -> Reader[bool | Expression]:
    """One of the words, else an expression. A text that is nearly one of the words is a typing error, not a field of
    that name."""

    def read(value: str) -> bool | Expression:
        if value in words:
            return words[value]
        near = did_you_mean(value, words) if value.isidentifier() else ""
        if near:
            raise InvalidValue(f"{listed(words)} or a JMESPath expression", hint=near)
        return reader(value)

    return read


def _read_balance(section: Section) -> BalanceFields:
    balance = section.child("balance", BALANCE)
    if balance is None:
        return BalanceFields()
    amounts = [key for key in _BALANCE_AMOUNTS if balance.has(key)]
    if not amounts:
        allowed = f"allowed: at least one of {listed(_BALANCE_AMOUNTS)}"
        balance.problems.add(balance.location, balance.path, f"found no amount, {allowed}")
    elif not balance.has("unit"):
        found = f"found nothing beside '{amounts[0]}', it is required: minor or major"
        balance.problems.add(balance.location, balance.key_path("unit"), found)
    return BalanceFields(
        authorised=balance.read("authorised", expression),
        captured=balance.read("captured", expression),
        capturable=balance.read("capturable", expression),
        refunded=balance.read("refunded", expression),
        disputed=balance.read("disputed", expression),
        currency=balance.read("currency", expression),
        unit=balance.read_or("unit", one_of(Unit), Unit.MINOR),
    )


def _read_overcapture(section: Section) -> Overcapture | None:
    found = section.child("overcapture", OVERCAPTURE)
    share = found.read("share", percentage(_OVERCAPTURE_MAX_PERCENT)) if found is not None else None
    if found is None or share is None:
        return None
    if share == 0:
        found.add_problem("share", "found 0%, which allows nothing, allowed: above 0%, or leave the block out")
    bounds = found.read_list("at_most", money, single=True)
    currencies = [bound.currency for bound in bounds]
    for currency in dict.fromkeys(currencies):
        if currencies.count(currency) > 1:
            found.add_problem("at_most", f"found {currency} a second time, allowed: one amount for each currency")
    return Overcapture(round(share * 10_000), bounds)


def _check_kinds(section: Section, kind: OperationKind) -> None:
    for key, kinds in _KINDS.items():
        if section.has(key) and kind not in kinds:
            section.add_problem(key, f"found in an operation of kind {kind}, allowed: in one of kind {_either(kinds)}")


def _either(kinds: tuple[OperationKind, ...]) -> str:
    *first, last = kinds
    return f"{listed(first)} or {last}" if first else str(last)


def _check_expiry(section: Section, kind: OperationKind, rules: PaymentRules) -> None:
    """Check that there is an amount that can expire: authorised, and not captured at once."""
    if not section.has("authorization_expires") or not kind.pays:
        return
    if rules.captures is True:
        section.add_problem("authorization_expires", "found beside 'captures: automatic': nothing is left to expire")
    elif kind is OperationKind.SALE and rules.captures is None and not section.has("captures"):
        section.add_problem(
            "authorization_expires",
            "found in a sale without 'captures', allowed: beside 'captures: manual' or an expression",
        )


def _check_company(section: Section, rules: PaymentRules) -> None:
    """Check that the keys have the other keys that they need."""
    if not rules.acts_on and not section.has("payment"):
        if rules.once_per_target:
            section.add_problem(
                "once_per_target", "found without 'target' or 'payment': there is no object that could pay once"
            )
        if section.has("intent_at"):
            section.add_problem(
                "intent_at", "found without 'target' or 'payment': there is no object that could show it"
            )
    if rules.continues and rules.acts_on:
        section.add_problem("continues", "found beside 'target' or 'payment', which names what it continues")
    if section.has("means") and not section.has("amount"):
        section.add_problem("means", "found without 'amount', whose meaning it is")
    lacking = [key for key in ("amount", "currency") if not section.has(key)]
    if section.has("intent_total") and lacking:
        section.add_problem(
            "intent_total", f"found without '{lacking[0]}': its unit and currency are those of the amount"
        )
