"""A policy's rules for the payment behind an operation: which payment it is, its numbers, and how they depend on each
other.

Values only. Nothing here is part of an operation's identity. Every default is the careful one: a fact that the policy
does not state counts as unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paywitness.core.classify import Expression
from paywitness.core.money import Money, Unit
from paywitness.core.provider_contract import FieldRef


class LimitMode(StrEnum):
    """How to treat a call that would exceed the remaining balance of its payment."""

    ENFORCE = "enforce"
    WARN = "warn"
    OFF = "off"


class PartialCaptures(StrEnum):
    """How often an authorization can be captured."""

    SINGLE = "single"
    SEQUENCE = "sequence"


class IncrementMeaning(StrEnum):
    """The meaning of an increment's amount."""

    TOTAL = "total"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True)
class Overcapture:
    """How much a provider lets us capture above the authorised amount. The smaller of the two bounds counts. For a
    currency that `at_most` does not name, only the share counts."""

    share_bp: int  # of the authorised amount, in hundredths of a percent
    at_most: tuple[Money, ...] = ()  # one for each currency

    def above(self, authorised: int, currency: str | None) -> int:
        above = authorised * self.share_bp // 10_000
        bounds = [bound.minor_units for bound in self.at_most if bound.currency == currency]
        return min([above, *bounds])

    def __str__(self) -> str:
        bounds = "".join(f", at most {bound.major} {bound.currency}" for bound in self.at_most)
        return f"{self.share_bp / 100:g}%{bounds}"


@dataclass(frozen=True, slots=True)
class BalanceFields:
    """The places of a payment's totals in a response or an object of the provider."""

    authorised: Expression | None = None
    captured: Expression | None = None
    capturable: Expression | None = None  # the amount that the provider itself would still let us capture
    refunded: Expression | None = None
    disputed: Expression | None = None
    currency: Expression | None = None
    unit: Unit = Unit.MINOR


@dataclass(frozen=True, slots=True)
class PaymentRules:
    """The payment of one operation."""

    acts_on: tuple[FieldRef, ...] = ()  # `payment`: places of its payment's name in the request; the first found
    also_known_as: tuple[Expression, ...] = ()  # further names, in a response or object
    captures: bool | Expression | None = None  # whether a success captures; an expression is over the response
    balance: BalanceFields = BalanceFields()
    limits: LimitMode = LimitMode.WARN
    increment_means: IncrementMeaning | None = None
    final: bool | Expression | None = None  # whether a capture releases the rest; an expression is over the request
    partial: PartialCaptures | None = None
    continues: bool = False  # it completes a payment that an earlier call began and that its request does not name
    # A call that continues a payment may name no account at this provider. So names are also kept without one.
    continued_without_account: bool = False
    once_per_target: bool = False  # the object that it acts on pays at most once
    failed_is_return: bool = False  # a failed reading after success takes the movement back, and is no incident
    intent_total: Expression | None = None  # over the request: several payments of an intent, up to this sum
    intent_at: Expression | None = None  # over the provider's object: the intent of a payment that we did not create
    overcapture: Overcapture | None = None
    authorization_expires_s: float | None = None
    capture_before: Expression | None = None  # over the provider's object: its own date, Unix seconds or RFC 3339
