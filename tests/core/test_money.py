"""Money is exact, or an error."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paywitness.core.errors import MoneyError
from paywitness.core.money import Money, Unit, exponent, read_money

FEW = settings(max_examples=25, derandomize=True, database=None)
WITHOUT_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF".split()
WITH_THREE = "BHD IQD JOD KWD LYD OMR TND".split()
WITH_FOUR = ["CLF", "UYW"]
NOT_MAJOR: list[object]
NOT_MINOR: list[object]


def test_exponents_are_those_of_iso_4217() -> None:
    for decimals, currencies in (
        (0, WITHOUT_DECIMALS),
        (3, WITH_THREE),
        (4, WITH_FOUR),
        (2, ["EUR", "USD", "MGA", "XYZ"]),
    ):
        assert {exponent(currency) for currency in currencies} == {decimals}
        assert {exponent(currency.lower()) for currency in currencies} == {decimals}


@FEW
@given(st.integers(-(10**17), 10**17), st.sampled_from(["EUR", "JPY", "KWD", "CLF"]))
def test_minor_and_major_units_say_the_same(minor: int, currency: str) -> None:
    money = Money(minor, currency)
    assert read_money(minor, currency, Unit.MINOR) == money
    assert read_money(str(minor), currency.lower(), Unit.MINOR) == money
    assert read_money(f"{money.major:f}", currency, Unit.MAJOR) == money
    assert money.major == Decimal(minor) / 10 ** exponent(currency)


@FEW
@given(st.integers(0, 10**11))
def test_a_float_of_major_units_is_what_the_sender_wrote(cents: int) -> None:
    assert read_money(cents / 100, "EUR", Unit.MAJOR) == Money(cents, "EUR")


@pytest.mark.parametrize(
    ("amount", "currency", "minor"),
    [
        ("10", "EUR", 1000),
        ("10.", "EUR", 1000),
        (".5", "EUR", 50),
        ("10.5", "EUR", 1050),
        ("10.50", "EUR", 1050),
        ("10.500", "EUR", 1050),
        ("-0.01", "EUR", -1),
        ("+1", "EUR", 100),
        (10, "EUR", 1000),
        (0.1, "EUR", 10),
        (19.99, "EUR", 1999),
        (1e2, "EUR", 10000),
        ("1e2", "EUR", 10000),
        ("1000", "JPY", 1000),
        ("1000.00", "JPY", 1000),
        ("1.234", "KWD", 1234),
        ("0.0001", "CLF", 1),
        ("0", "EUR", 0),
    ],
)
def test_major_units_are_read_exactly(amount: object, currency: str, minor: int) -> None:
    assert read_money(amount, currency, Unit.MAJOR) == Money(minor, currency)


def test_a_list_is_a_sum_in_one_currency() -> None:
    assert read_money(["0.10", "0.20", 3], ["EUR", "eur"], Unit.MAJOR) == Money(330, "EUR")
    assert read_money([1, "2"], "JPY", Unit.MINOR) == Money(3, "JPY")


@pytest.mark.parametrize(
    ("amounts", "currency"),
    [
        ([], "EUR"),
        (["1"], []),
        (["1", "2"], ["EUR", "USD"]),
        (["1", None], "EUR"),
        (["1", "0.001"], "EUR"),
        ([["1"]], "EUR"),
        (["1"], ["EUR", None]),
        (["9" * 16, "9" * 16], "EUR"),
        (["1"] * 15_001, "EUR"),
    ],
)
def test_a_sum_of_which_a_part_is_in_doubt_is_an_error(amounts: object, currency: object) -> None:
    with pytest.raises(MoneyError):
        read_money(amounts, currency, Unit.MAJOR)


NOT_MAJOR = [None, True, "", " ", "ten", "1,50", "1 0", " 10", "1_0", "0x10", ".", "10\n", [], {}]
NOT_MAJOR += ["NaN", "sNaN", "Infinity", "-Infinity", float("nan"), float("inf"), "\uff11\uff10", "\u0661"]
NOT_MAJOR += ["1" * 33, "1" * 20, "1e400", "1e40", "1e-40", "12345678901234.00000000000000001"]
NOT_MAJOR += ["0.001", 0.001, "10.005"]


@pytest.mark.parametrize("amount", NOT_MAJOR)
def test_what_is_not_exactly_money_is_an_error_in_major_units(amount: object) -> None:
    with pytest.raises(MoneyError):
        read_money(amount, "EUR", Unit.MAJOR)


@pytest.mark.parametrize(
    ("amount", "minor"),
    [(1000, 1000), ("1000", 1000), ("-5", -5), (10.0, 10), (0, 0), ("007", 7), (10**18 - 1, 10**18 - 1)],
)
def test_minor_units_are_whole_numbers(amount: object, minor: int) -> None:
    assert read_money(amount, "EUR", Unit.MINOR).minor_units == minor


NOT_MINOR = [None, True, False, "", "10.0", "1e3", "+1", " 1", "1\n", "1_0", "\u0661", [], {}]
NOT_MINOR += [10.5, float("nan"), float("inf"), 2.0**60, 10**18, -(10**18), "1" * 19]


@pytest.mark.parametrize("amount", NOT_MINOR)
def test_what_is_not_a_whole_number_is_an_error_in_minor_units(amount: object) -> None:
    with pytest.raises(MoneyError):
        read_money(amount, "EUR", Unit.MINOR)


@pytest.mark.parametrize(
    "currency", [None, "", "EU", "EURO", "E R", "EU1", "EUR\n", 978, "\u0415UR", "\u20ac\u20ac\u20ac"]
)
def test_a_currency_is_three_letters(currency: object) -> None:
    for unit in Unit:
        with pytest.raises(MoneyError):
            read_money(10, currency, unit)


def test_an_error_never_shows_the_amount() -> None:
    with pytest.raises(MoneyError) as refusal:
        read_money("4111111111111111.999", "EUR", Unit.MAJOR)
    assert "4111" not in str(refusal.value)


@pytest.mark.parametrize(
    ("money", "shown"),
    [(Money(1050, "EUR"), "10.50 EUR"), (Money(1000, "JPY"), "1000 JPY"), (Money(-1, "KWD"), "-0.001 KWD")],
)
def test_money_is_shown_in_major_units(money: Money, shown: str) -> None:
    assert str(money) == shown
