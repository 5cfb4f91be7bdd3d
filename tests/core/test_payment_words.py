"""What stands of a payment, in words. Each sentence says no more than the numbers do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.operation import Guard, GuardKind, State
from paywitness.core.payment import Movement, MovementStatus, PaidElsewhere, Payment
from paywitness.core.payment_words import payment_sentences, payment_summary
from paywitness.core.provider_contract import OperationKind
from tests.telemetry.samples import operation as some_operation

PAID = Payment(
    "op_1",
    "acme",
    "account",
    ("ch_1",),
    Guard(GuardKind.INTENT, "hash", "order-17"),
    "EUR",
    authorised=2500,
    captured=2500,
    refunded=0,
    voided=0,
    disputed=0,
    paid=True,
    steps=("op_1",),
)
EQUAL_CALL = "an equal call gets 409 unless it says Paywitness-Distinct. A call with another body passes."


def posted(kind: OperationKind, minor_units: int | None = None) -> Movement:
    return Movement(f"op_{kind}", kind, minor_units, MovementStatus.POSTED)


VOIDED = posted(OperationKind.VOID)


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({"paid": False}, "Nothing is recorded as authorised or captured."),
        ({}, "Paid: 25.00 EUR authorised, 25.00 captured, 0.00 refunded. 25.00 EUR stand."),
        ({"refunded": 1000}, "Paid: 25.00 EUR authorised, 25.00 captured, 10.00 refunded. 15.00 EUR stand."),
        (
            {"refunded": 2500},
            "Paid: 25.00 EUR authorised, 25.00 captured, 25.00 refunded. Refunded in full: " + EQUAL_CALL,
        ),
        (
            {"captured": 0},
            "Paid: 25.00 EUR authorised, 0.00 captured, 0.00 refunded. Nothing captured stands, but 25.00 EUR can "
            "still be captured.",
        ),
        (
            {
                "captured": 0,
                "voided": 2500,
                "final": True,
                "given_back": True,
                "movements": (VOIDED,),
            },
            "Paid: 25.00 EUR authorised, 0.00 captured, 0.00 refunded, 25.00 voided. Voided in full: " + EQUAL_CALL,
        ),
        (
            {"authorised": 10000, "captured": 6000, "voided": 4000, "final": True},
            "Paid: 100.00 EUR authorised, 60.00 captured, 0.00 refunded, 40.00 voided. 60.00 EUR stand. A void of the "
            "rest does not free it: 60.00 EUR were captured.",
        ),
        (
            {"captured": None},
            "Paid: 25.00 EUR authorised, captured unknown, 0.00 refunded. What stands is unknown: what was captured is "
            "unknown.",
        ),
        (
            {"captured": None, "refunded": None, "authorised": None},
            "Paid: authorised unknown, captured unknown, refunded unknown. What stands is unknown: what was captured "
            "and refunded is unknown.",
        ),
        (
            {"currency": "JPY", "refunded": 2500, "disputed": 2500},
            "Paid: 2500 JPY authorised, 2500 captured, 2500 refunded, 2500 disputed. 2500 JPY are disputed: a dispute "
            "never frees it.",
        ),
        (
            {"elsewhere": PaidElsewhere.VERIFIED, "paid": False},
            "Paid, but not by a call of ours: 25.00 EUR authorised, 25.00 captured, 0.00 refunded. 25.00 EUR stand.",
        ),
        (
            {"refunded": 1500, "movements": (Movement("op_2", OperationKind.REFUND, 1000),)},
            "Paid: 25.00 EUR authorised, 25.00 captured, 15.00 refunded. 10.00 EUR stand. A refund of 10.00 EUR is "
            "open: its end is not known yet.",
        ),
    ],
)
def test_the_sentences_say_what_stands(changes: dict[str, Any], sentences: str) -> None:
    assert payment_sentences(replace(PAID, **changes)) == sentences


def test_a_payment_that_only_the_provider_has_claimed_is_said_to_be_unverified() -> None:
    claimed = Payment("op_1", "acme", "account", ("ch_1",), elsewhere=PaidElsewhere.UNVERIFIED)
    assert payment_sentences(claimed).startswith(
        "Paid, but not by a call of ours: the provider says so, and no inquiry has shown the payment yet"
    )


def test_the_summary_has_numbers_reservations_steps_movements_and_posting_keys() -> None:
    payment = replace(
        PAID,
        refunded=500,
        movements=(
            replace(posted(OperationKind.REFUND, 500), operation_id="op_2"),
            Movement("op_3", OperationKind.REFUND, 700, MovementStatus.RETURNED),
            Movement("op_4", OperationKind.REFUND, 100),
            Movement("op_5", OperationKind.CAPTURE, None),
        ),
    )
    refund = some_operation(State.SUCCEEDED, id="op_2", kind=OperationKind.REFUND, operation="refund")
    told = payment_summary(payment, {"op_2": refund})
    numbers = ("authorised", "captured", "refunded", "voided", "disputed", "stands", "capturable")
    assert [told[name] for name in numbers] == ["25.00", "25.00", "5.00", "0.00", "0.00", "20.00", "0.00"]
    assert (told["names"], told["intent"], told["hold"]) == (["ch_1"], "order-17", "paid")
    assert told["reserved"] == {"refund": "1.00", "capture": None}
    assert told["posting"] == "op_1:payment"
    assert told["steps"][0] | {"operation": "op_1", "outcome": None} == told["steps"][0]
    assert [(each["status"], each["outcome"], each["amount"]) for each in told["movements"]] == [
        ("posted", "succeeded", "5.00"),
        ("returned", None, "7.00"),
        ("reserved", None, "1.00"),
        ("reserved", None, None),
    ]
    assert [(each["posting"], each["returned_by"]) for each in told["movements"]] == [
        ("op_2", None),
        ("op_3", "op_3:returned"),
        (None, None),
        (None, None),
    ]


def test_no_account_and_no_hash_leaves_in_a_summary() -> None:
    told = str(payment_summary(PAID, {}))
    assert "account" not in told
    assert "hash" not in told
