"""The block `payout`: who gets the money, caps, approval, and the check before it is sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from paywitness.core import policy_defaults
from paywitness.core.addresses import is_private
from paywitness.core.money import Money
from paywitness.core.payout_rules import CapScope, CheckHook, PayoutCap, PayoutRules
from paywitness.core.provider_contract import FieldKind, OperationKind
from paywitness.policy.reading.section import Section, invalid_value_message
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    duration,
    environment_variable,
    field_ref,
    money,
    one_of,
    text,
)
from paywitness.policy.schema import APPROVAL_ABOVE, CAPS, CHECK, PAYOUT

_HOUR_S, _DAY_S = 3600.0, 86400.0
_WINDOW_MAX_S = 31 * _DAY_S
_APPROVAL_VALID_MAX_S = 30 * _DAY_S
_CHECK_MIN_S, _CHECK_MAX_S = 0.05, 30.0

read_beneficiary = field_ref(FieldKind.BODY, FieldKind.PATH, FieldKind.HEADER)


def read_payout(section: Section, parameters: frozenset[str]) -> PayoutRules | None:
    """The rules of an operation's payouts; None if it has none. `parameters` are those of all its paths."""
    payout = section.child("payout", PAYOUT)
    if payout is None:
        return None
    kind = section.read("kind", one_of(OperationKind))
    if kind is not None and kind is not OperationKind.PAYOUT:
        section.add_problem("payout", f"found in an operation of kind {kind}, allowed: in one of kind payout")
    beneficiary = payout.read_list("beneficiary", read_beneficiary, single=True)
    for place in beneficiary:
        if place.kind is FieldKind.PATH and place.name not in parameters:
            payout.add_problem("beneficiary", f"found '{place}', which is not in every 'match'")
    rules = PayoutRules(
        beneficiary=beneficiary,
        caps=_read_caps(payout),
        approval_above=_read_approvals(payout),
        approval_valid_s=payout.read_or(
            "approval_valid", duration(60.0, _APPROVAL_VALID_MAX_S), policy_defaults.PAYOUT_APPROVAL_VALID_S
        ),
        check=_read_check(payout),
    )
    _check_company(section, payout)
    return rules


def _read_caps(payout: Section) -> tuple[PayoutCap, ...]:
    caps: list[PayoutCap] = []
    for section in payout.children("caps", CAPS):
        per, window_s = section.read("per", one_of(CapScope)), section.read("window", _window)
        amount = _read_amount(section)
        if per is None or window_s is None or amount is None:
            continue
        if per is CapScope.BENEFICIARY and not payout.has("beneficiary"):
            section.add_problem("per", "found 'beneficiary' without the key 'beneficiary', which says who that is")
        same = (per, window_s, amount.currency)
        if any((cap.per, cap.window_s, cap.amount.currency) == same for cap in caps):
            found = f"found a second cap per {per} in {amount.currency} over the same window, allowed: one"
            section.problems.add(section.location, section.path, found)
        caps.append(PayoutCap(per, window_s, amount))
    return tuple(caps)


def _window(value: str) -> float:
    seconds = duration(_HOUR_S, _WINDOW_MAX_S)(value)
    if seconds % _HOUR_S:
        raise InvalidValue("whole hours or days, such as 1h, 1d or 7d")
    return seconds


def _read_approvals(payout: Section) -> tuple[Money, ...]:
    bounds: list[Money] = []
    for section in payout.children("approval_above", APPROVAL_ABOVE):
        amount = _read_amount(section)
        if amount is None:
            continue
        if any(bound.currency == amount.currency for bound in bounds):
            section.add_problem("currency", f"found {amount.currency} a second time, allowed: one amount for each")
        bounds.append(amount)
    return tuple(bounds)


def _read_amount(section: Section) -> Money | None:
    """`amount` and `currency`, in major units."""
    amount, currency = section.read("amount", text), section.read("currency", text)
    if amount is None or currency is None:
        return None
    try:
        return money(f"{amount} {currency}")
    except InvalidValue as invalid:
        section.add_problem("amount", invalid_value_message(f"{amount} {currency}", invalid))
        return None


def _read_check(payout: Section) -> CheckHook | None:
    section = payout.child("check", CHECK)
    if section is None:
        return None
    url, secret = section.read("url", _check_url), section.read("secret", environment_variable)
    timeout_s = section.read_or("timeout", duration(_CHECK_MIN_S, _CHECK_MAX_S), policy_defaults.PAYOUT_CHECK_TIMEOUT_S)
    return None if url is None or secret is None else CheckHook(url, secret, timeout_s)


def _check_url(value: str) -> str:
    """An address of your own. It gets who is paid how much, so outside a private network it must be https."""
    allowed = "an address such as https://risk.example.com/payouts, without user or fragment"
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise InvalidValue(allowed) from None
    unfit = not value.isascii() or not value.isprintable() or " " in value or "#" in value or parts.username is not None
    if unfit or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidValue(allowed)
    if parts.scheme == "http" and not is_private(parts.hostname):
        raise InvalidValue(f"{allowed}; plain http only to this machine or a private network")
    return value


def _check_company(section: Section, payout: Section) -> None:
    """Check that the keys have the other keys that they need."""
    lacking = [key for key in ("amount", "currency") if not section.has(key)]
    for key in ("caps", "approval_above"):
        if payout.has(key) and lacking:
            payout.add_problem(key, f"found without '{lacking[0]}' in the operation: there is nothing to count")
    if payout.has("approval_valid") and not payout.has("approval_above"):
        payout.add_problem("approval_valid", "found without 'approval_above': nothing is ever approved")
    if not any(payout.has(key) for key in ("caps", "approval_above", "check")):
        found = "found none of 'caps', 'approval_above' and 'check', allowed: at least one, or leave the block out"
        payout.problems.add(payout.location, payout.path, found)
