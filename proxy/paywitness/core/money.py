"""Money: an integer of minor units with its currency, never a float. Exponents are ISO 4217's."""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache

from paywitness.core.errors import MoneyError
from paywitness.core.record import record

# ISO 4217 currencies whose minor unit is not a hundredth.
_EXPONENTS = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF"), 0),
    **dict.fromkeys(("UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}
_CURRENCY = re.compile(r"[A-Za-z]{3}\Z")
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}\Z")
_MINOR_UNITS_MAX = 10**18
_EXACT_FLOAT_MAX = 2**53
_PARTS_MAX = 15_000  # a PayPal payout has that many items at most
_DECIMAL_TEXT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\Z")
_DIGITS_MAX = 28  # decimal arithmetic is exact up to this; beyond it would round


class Unit(StrEnum):
    MINOR = "minor"
    MAJOR = "major"


@record
class Money:
    minor_units: int
    currency: str  # upper case

    def __str__(self) -> str:
        return f"{self.major} {self.currency}"

    @property
    def major(self) -> Decimal:
        return Decimal(self.minor_units).scaleb(-exponent(self.currency))


def exponent(currency: str) -> int:
    """How many decimals the currency has; two unless ISO 4217 defines another number."""
    return _EXPONENTS.get(currency.upper(), 2)


def read_money(amount: object, currency: object, unit: Unit) -> Money:
    """Money from what a body carries: a whole number of minor units, or a decimal of major ones. Exact, or an error.
    A list is a sum, of the parts of one order; its currencies must be one."""
    code = _code(currency) if isinstance(currency, str) else _currency(currency)
    parts = amount if isinstance(amount, list) else (amount,)
    if not 0 < len(parts) <= _PARTS_MAX:
        raise MoneyError("the amount is a list of none, or of too many")
    total = 0
    for part in parts:
        if unit is Unit.MAJOR:
            total += _minor_units(part, code)
        elif isinstance(part, int) and not isinstance(part, bool) and abs(part) < _MINOR_UNITS_MAX:
            total += part
        else:
            total += _whole(part)
    if abs(total) >= _MINOR_UNITS_MAX:
        raise MoneyError("the amount is too large")
    return Money(total, code)


@lru_cache(maxsize=256)  # caches only valid codes, because an invalid one raises
def _code(currency: str) -> str:
    if not _CURRENCY.match(currency):
        raise MoneyError("the currency is not a three-letter code")
    return currency.upper()


def _currency(currency: object) -> str:
    """The one currency of several parts."""
    if not isinstance(currency, list) or not all(isinstance(part, str) for part in currency):
        raise MoneyError("the currency is not a three-letter code")
    codes = {_code(part) for part in currency}
    if len(codes) != 1:
        raise MoneyError("the amounts are of no currency, or of several")
    return codes.pop()


def _minor_units(amount: object, code: str) -> int:
    minor = _decimal(amount).scaleb(exponent(code))
    if minor != minor.to_integral_value():
        raise MoneyError(f"the amount has more decimals than {code} has")
    return int(minor)


def _whole(amount: object) -> int:
    """A whole number that is written as a text or with a point."""
    if isinstance(amount, str) and _WHOLE_NUMBER.match(amount):
        return int(amount)
    if isinstance(amount, float) and amount.is_integer() and abs(amount) < _EXACT_FLOAT_MAX:
        return int(amount)
    raise MoneyError("the amount is not a whole number of minor units")


def _decimal(amount: object) -> Decimal:
    if isinstance(amount, bool) or not isinstance(amount, (int, str, float)):
        raise MoneyError("the amount is not a decimal number")
    # repr of a float is the shortest text that reads back as it: what the sender wrote, for any amount of money.
    text = amount if isinstance(amount, str) else repr(amount)
    if len(text) > 32:
        raise MoneyError("the amount is too long")
    if not _DECIMAL_TEXT.match(text):
        raise MoneyError("the amount is not a decimal number")
    value = Decimal(text)
    if len(value.as_tuple().digits) > _DIGITS_MAX or abs(value.adjusted()) > 30:
        raise MoneyError("the amount has too many digits")
    return value
