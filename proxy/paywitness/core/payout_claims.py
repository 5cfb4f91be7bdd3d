"""What a call means for the payout rules: who gets the money, which caps count it, what must be approved. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from paywitness.core.bodies.tree import Tree, value_at
from paywitness.core.call import Call
from paywitness.core.identity import Identity, canonical, keyed_hash, value_in
from paywitness.core.money import Money
from paywitness.core.operation import GuardKind
from paywitness.core.payout import ApprovalTerms, CapClaim, PayoutClaim, cap_key
from paywitness.core.payout_rules import CapScope, PayoutRules
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind, FieldRef

_APPROVAL_ID_PREFIX = "ap_"


def payout_claim(
    call: Call,
    policy: Policy,
    tree: Tree,
    parameters: Mapping[str, str],
    identity: Identity,
    money: Money | None,
    secret: bytes,
) -> PayoutClaim:
    """What the call means for the payout rules. Without rules it requires nothing."""
    rules = policy.payout or PayoutRules()
    provider = policy.names[0] or policy.provider
    beneficiary = keyed_hash(secret, "beneficiary", *beneficiary_texts(rules, call, tree, parameters))[:32]
    scopes = {
        CapScope.ACCOUNT: (provider, identity.account),
        CapScope.BENEFICIARY: (provider, identity.account, beneficiary),
    }
    caps = tuple(
        CapClaim(cap_key(cap, *scopes[cap.per]), cap)
        for cap in rules.caps
        if money is not None and cap.amount.currency == money.currency
    )
    cannot_count = _why_uncountable(money, caps) if rules.caps else ""
    approval = None
    if _needs_approval(rules, money):
        approval = _approval_terms(policy, identity, beneficiary, money, secret)
    return PayoutClaim(caps, cannot_count, approval, rules.approval_valid_s, rules.check is not None)


def _why_uncountable(money: Money | None, caps: tuple[CapClaim, ...]) -> str:
    """Why the caps cannot count the payout; empty if they can. An amount below zero would give back what other payouts
    have spent."""
    if money is None:
        return "its amount cannot be read"
    if money.minor_units < 0:
        return "its amount is below zero"
    return "" if caps else f"no cap of the policy is in {money.currency}"


def beneficiary_texts(rules: PayoutRules, call: Call, tree: Tree, parameters: Mapping[str, str]) -> tuple[str, ...]:
    """The texts that together name the beneficiary, one for each place; empty if the request does not have it. Spaces
    and case do not count, because two ways to write one IBAN are one beneficiary."""
    return tuple("".join(shown_at(place, call, tree, parameters).split()).upper() for place in rules.beneficiary)


def shown_at(place: FieldRef, call: Call, tree: Tree, parameters: Mapping[str, str]) -> str:
    """The text at a place of the request. An object or a list is given as JSON."""
    if place.kind is FieldKind.BODY:
        found = value_at(tree, place.name)
        if isinstance(found, (dict, list)):
            return canonical(found)
    return value_in(place, call, tree, dict(parameters)) or ""


def _needs_approval(rules: PayoutRules, money: Money | None) -> bool:
    """Whether a person must approve the payout: also if its amount cannot be read or is below zero, or if its currency
    is not listed."""
    if not rules.approval_above:
        return False
    if money is None or money.minor_units < 0:
        return True
    above = next((bound for bound in rules.approval_above if bound.currency == money.currency), None)
    return above is None or money.minor_units > above.minor_units


def _approval_terms(
    policy: Policy, identity: Identity, beneficiary: str, money: Money | None, secret: bytes
) -> ApprovalTerms:
    guard = identity.guard
    names_transfer = guard is not None and guard.kind is GuardKind.TARGET
    reference, value = (guard.label, guard.value) if guard is not None and names_transfer else ("", "")
    provider, operation = policy.names[0] or policy.provider, policy.names[1] or policy.operation
    amount = "" if money is None else f"{money.minor_units} {money.currency}"
    bound = (provider, operation, identity.account, identity.fingerprint, value, beneficiary, amount)
    return ApprovalTerms(
        _APPROVAL_ID_PREFIX + keyed_hash(secret, "approval", *bound)[:24],
        policy.provider,
        policy.operation,
        identity.account,
        identity.fingerprint,
        reference,
        beneficiary,
        money,
    )
