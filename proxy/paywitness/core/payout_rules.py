"""The rules of a policy for payouts: who gets the money, how much may be paid out, above which amount a person must
approve, and which service checks a payout before it is sent.

Values only. Nothing here is part of an operation's identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paywitness.core import policy_defaults
from paywitness.core.money import Money
from paywitness.core.provider_contract import FieldRef


class CapScope(StrEnum):
    """Whose payouts a cap counts together."""

    BENEFICIARY = "beneficiary"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True)
class PayoutCap:
    """How much may be paid out in a window, in one currency."""

    per: CapScope
    window_s: float
    amount: Money


@dataclass(frozen=True, slots=True)
class CheckHook:
    """The service that checks a payout before it is sent. The secret is the name of an environment variable."""

    url: str
    secret: str
    timeout_s: float = policy_defaults.PAYOUT_CHECK_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class PayoutRules:
    """The block `payout` of one operation."""

    beneficiary: tuple[FieldRef, ...] = ()  # all of them together name who gets the money
    caps: tuple[PayoutCap, ...] = ()
    approval_above: tuple[Money, ...] = ()  # one for each currency
    approval_valid_s: float = policy_defaults.PAYOUT_APPROVAL_VALID_S
    check: CheckHook | None = None
