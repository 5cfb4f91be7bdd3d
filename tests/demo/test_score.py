"""The judge: each payment stands in one cell, and every number is a sum of cells."""

from __future__ import annotations

from itertools import product

import pytest

from paywitness.demo.score import CallerResult, Charged, ReportedOutcome, Score, score_payments
from paywitness_sandbox.bank.ledger import EntryKind, Ledger, LedgerEntry

AMOUNT = 1250
EVERYTHING = list(product(ReportedOutcome, range(4)))  # what was told, how often it was charged


def line(order: str, told: ReportedOutcome) -> CallerResult:
    return CallerResult(order, told, requests=1, keys=1, took_s=0.1)


def ledger_of(*orders: str, kind: EntryKind = EntryKind.CHARGE, amount: int = AMOUNT) -> list[LedgerEntry]:
    ledger = Ledger()
    for number, order in enumerate(orders):
        name = f"ch_{number}"
        ledger.write(kind, at=0.0, id=name, charge=name, key=None, order=order, amount=amount, currency="EUR")
    return list(ledger.entries)


def verdict_on(told: ReportedOutcome, charges: int) -> Score:
    return score_payments([line("o-1", told)], ledger_of(*["o-1"] * charges))


@pytest.mark.parametrize(("told", "charges"), EVERYTHING)
def test_a_payment_stands_in_exactly_one_cell(told: ReportedOutcome, charges: int) -> None:
    charged = (Charged.NOT, Charged.ONCE, Charged.TWICE, Charged.TWICE)[charges]
    cells = verdict_on(told, charges).cells
    assert {cell for cell, number in cells.items() if number} == {(told, charged)}
    assert set(cells) == set(product(ReportedOutcome, Charged))


@pytest.mark.parametrize(("told", "charges"), EVERYTHING)
def test_every_number_follows_from_what_was_told_and_what_was_charged(told: ReportedOutcome, charges: int) -> None:
    assert verdict_on(told, charges).as_json() == {
        "payments": 1,
        "charged_twice": int(charges >= 2),
        "charged_but_told_failed": int(told in (ReportedOutcome.FAILED, ReportedOutcome.DECLINED) and charges >= 1),
        "told_paid_but_not_charged": int(told is ReportedOutcome.PAID and charges == 0),
        "told_unknown": int(told is ReportedOutcome.UNKNOWN),
        "told_unknown_and_charged": int(told is ReportedOutcome.UNKNOWN and charges >= 1),
        "paid_and_told_paid": int(told is ReportedOutcome.PAID and charges == 1),
        "declined": int(told is ReportedOutcome.DECLINED and charges == 0),
        "failed_and_told_failed": int(told is ReportedOutcome.FAILED and charges == 0),
        "overcharged": max(0, charges - 1) * AMOUNT,
    }


def test_payments_add_up() -> None:
    log = [
        line("a", ReportedOutcome.PAID),
        line("b", ReportedOutcome.PAID),
        line("c", ReportedOutcome.FAILED),
        line("d", ReportedOutcome.UNKNOWN),
    ]
    verdict = score_payments(log, ledger_of("a", "c", "c", "d"))
    assert verdict.payments == 4
    assert (verdict.charged_twice, verdict.charged_but_told_failed, verdict.told_paid_but_not_charged) == (1, 1, 1)
    assert (verdict.told_unknown, verdict.told_unknown_and_charged, verdict.paid_and_told_paid) == (1, 1, 1)


def test_an_authorization_is_a_charge_to_the_customer() -> None:
    assert (
        score_payments(
            [line("o-1", ReportedOutcome.FAILED)], ledger_of("o-1", kind=EntryKind.AUTHORIZATION)
        ).charged_but_told_failed
        == 1
    )


@pytest.mark.parametrize("kind", [EntryKind.CAPTURE, EntryKind.REFUND, EntryKind.VOID])
def test_what_follows_a_charge_is_not_another_one(kind: EntryKind) -> None:
    verdict = score_payments([line("o-1", ReportedOutcome.PAID)], ledger_of("o-1") + ledger_of("o-1", kind=kind))
    assert (verdict.paid_and_told_paid, verdict.charged_twice, verdict.overcharged) == (1, 0, 0)


def test_only_what_goes_beyond_the_first_charge_was_taken_too_much() -> None:
    entries = ledger_of("a", amount=100) + ledger_of("b", amount=200) + ledger_of("a", "a", amount=100)
    assert (
        score_payments([line("a", ReportedOutcome.PAID), line("b", ReportedOutcome.PAID)], entries).overcharged == 200
    )


def test_nothing_ordered_is_nothing_to_judge() -> None:
    assert set(score_payments([], []).as_json().values()) == {0}


def test_a_charge_that_nobody_ordered_is_not_overlooked() -> None:
    with pytest.raises(ValueError, match="o-2"):
        score_payments([line("o-1", ReportedOutcome.PAID)], ledger_of("o-1", "o-2"))


def test_a_payment_that_was_told_twice_is_not_counted_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        score_payments([line("o-1", ReportedOutcome.PAID), line("o-1", ReportedOutcome.FAILED)], [])
