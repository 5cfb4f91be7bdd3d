"""Worldpay, Wise, Xendit, Midtrans, dLocal and Flutterwave: where little is documented, the careful choice.

Which call is which and what every answer means is told case by case in policies/tests; here stands what would cost
money if somebody took it out.
"""

from __future__ import annotations

import pytest

from paywitness.core.decide import Action
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import ErrorsUnderKey, FieldKind
from paywitness.core.result import ResultClass
from paywitness.policy.explain import FailureScenario, explain
from tests.policy.shipped import BOOK, policy

NAMES = ("worldpay", "wise", "xendit", "midtrans", "dlocal", "flutterwave")
MOVING = [found for name in NAMES for found in BOOK.providers[name].policies if found.kind.moves_money]
IN_DOUBT = (ResultClass.NETWORK_READ_TIMEOUT, ResultClass.TEMPORARY_PROVIDER_ERROR, ResultClass.IDEMPOTENCY_IN_FLIGHT)


def named(found: Policy) -> str:
    return f"{found.provider}.{found.operation}"


@pytest.mark.parametrize("found", MOVING, ids=named)
def test_what_moves_money_is_never_sent_again_in_doubt(found: Policy) -> None:
    for reading in IN_DOUBT:
        for background in (False, True):
            told = explain(found, FailureScenario(reading, time_left_s=30.0, background=background))
            assert told.decision.action in {Action.STATUS_INQUIRY, Action.WAIT_FOR_WEBHOOK, Action.SEND_TO_REVIEW}


@pytest.mark.parametrize("found", MOVING, ids=named)
def test_what_was_never_sent_is_tried_again(found: Policy) -> None:
    told = explain(found, FailureScenario(ResultClass.NETWORK_CONNECT_FAILURE, sent=False, time_left_s=30.0))
    assert told.decision.because == "no_effect_try_again"


def test_what_is_not_documented_is_not_relied_upon() -> None:
    assumed = {named(found): found.contract.assumed for name in NAMES for found in BOOK.providers[name].policies}
    assert {name: facts for name, facts in assumed.items() if facts} == {"wise.transfer": {"window"}}
    for name in ("xendit.sale", "xendit.refund", "dlocal.sale", "flutterwave.charge"):
        contract = policy(name).contract
        assert (contract.window_s, contract.errors_under_key) == (None, ErrorsUnderKey.UNKNOWN)


def test_an_order_of_wises_that_moves_nothing_may_be_sent_again_for_a_while() -> None:
    young, old = (
        explain(policy("wise.transfer"), FailureScenario(IN_DOUBT[0], age_s=age, time_left_s=30)) for age in (60, 500)
    )
    assert (young.decision.because, old.decision.because) == ("in_doubt_same_key_is_safe", "in_doubt_ask")


def test_nothing_is_written_into_a_body_that_its_caller_has_signed() -> None:
    for found in BOOK.providers["dlocal"].policies:
        assert (found.stamp, found.inquiries, found.cancel) == (None, (), None)
        assert found.contract.send_as is not None
        assert found.contract.send_as.kind is FieldKind.HEADER


def test_a_key_that_midtrans_knows_from_another_path_never_goes_out() -> None:
    assert not any(found.contract.key_space_is_account for found in BOOK.providers["midtrans"].policies)


def test_card_data_is_never_kept() -> None:
    kept_out = {
        "worldpay": {"instruction.paymentInstrument.cardNumber", "instruction.paymentInstrument.cvc"},
        "xendit": {"payment_method.card.card_information"},
        "dlocal": {"card.number", "card.cvv", "card.encrypted_data"},
        "flutterwave": {"payment_method.card", "authorization"},
    }
    for name, paths in kept_out.items():
        assert all(paths <= set(found.never_store) for found in BOOK.providers[name].policies)


def test_a_list_that_may_leave_things_out_proves_no_absence() -> None:
    lists = [policy(name).inquiries[1] for name in ("wise.transfer", "flutterwave.charge", "flutterwave.transfer")]
    assert all(inquiry.more is not None and inquiry.more({}) is True for inquiry in lists)
