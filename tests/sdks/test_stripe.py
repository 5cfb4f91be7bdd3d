"""The unmodified stripe SDK: `StripeClient`, and the module's own calls with the retries that those make by default."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stripe

from tests.sdks.conftest import House
from tests.sdks.double import Fault
from tests.sdks.scenarios import (
    BROKEN_AFTER,
    NOTHING_WAS_SENT,
    SCENARIOS,
    STORED,
    Scenario,
    Stand,
    Told,
    Verdict,
    pay_again,
    pay_at_once,
    play,
    repeat,
)
from tests.sdks.stripe_double import StripeDouble

pytestmark = pytest.mark.slow
# Every payment is stamped and can be searched for: a 500 is not the end of it.
VERDICTS = {**STORED, BROKEN_AFTER: Verdict.PAID}


@pytest.fixture
def stand(house: House) -> Stand:
    return house.stand(StripeDouble)


def params(order: str, declined: bool, amount: int = 1099, code: str = "insufficient_funds") -> dict:
    card = f"pm_card_declined_{code}" if declined else "pm_card_visa"
    return {
        "amount": amount,
        "currency": "eur",
        "confirm": True,
        "payment_method": card,
        "metadata": {"order_id": order},
    }


def seen(error: stripe.StripeError) -> Told:
    """Its words are those of the error object that it understood, not of a body that it merely quotes."""
    words = error.error.message if error.error is not None else None
    return Told(type(error).__name__, (error.http_status, error.code), words or "")


def paid(intent: stripe.PaymentIntent) -> Told:
    return Told("paid", (intent.status, intent.amount, intent.currency))


def by_client(url: str, order: str, declined: bool = False, amount: int = 1099) -> Told:
    client = stripe.StripeClient("sk_test", base_addresses={"api": url})
    try:
        options = {"idempotency_key": f"key-{order}"}
        return paid(client.v1.payment_intents.create(params(order, declined, amount), options))  # type: ignore[arg-type]
    except stripe.StripeError as error:
        return seen(error)


def by_module(url: str, order: str, declined: bool = False) -> Told:
    """As most shops do it: no key of their own, and the retries that the module makes by default."""
    stripe.api_base = url
    try:
        return paid(stripe.PaymentIntent.create(api_key="sk_test", **params(order, declined)))
    except stripe.StripeError as error:
        return seen(error)


@pytest.fixture(autouse=True)
def _module() -> Iterator[None]:
    base = stripe.api_base
    yield
    stripe.api_base = base


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], by_client)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_one_effect_and_no_surprise_with_the_modules_own_retries(stand: Stand, scenario: Scenario) -> None:
    play(stand, scenario, VERDICTS[scenario], by_module)


def test_half_an_answer_is_a_lost_one(stand: Stand) -> None:
    play(stand, Scenario("truncated", (Fault.TRUNCATED,)), Verdict.PAID, by_client)


def test_a_refund_whose_answer_was_lost_is_made_once(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.LOST)
    client = stripe.StripeClient("sk_test", base_addresses={"api": stand.through})
    about = {"payment_intent": "pi_1", "amount": 100, "metadata": {"order_id": order}}
    assert client.v1.refunds.create(about).status == "succeeded"  # type: ignore[arg-type]
    assert stand.double.effects(order) == 1


def test_a_lost_answer_of_ours_is_asked_for_again(stand: Stand) -> None:
    repeat(stand, by_client, by_itself=False)


def test_a_lost_answer_of_ours_is_asked_for_again_by_the_module(stand: Stand) -> None:
    repeat(stand, by_module, by_itself=True)


def test_an_order_that_is_paid_is_not_paid_again_under_the_next_key_that_the_module_makes(stand: Stand) -> None:
    pay_again(stand, by_module, by_module)


def test_callers_at_once_each_under_a_fresh_key_pay_once(stand: Stand) -> None:
    pay_at_once(stand, by_module)


def test_a_key_with_another_amount_is_told_in_our_words(stand: Stand) -> None:
    order = stand.new_order()
    assert by_client(stand.through, order).paid
    told = by_client(stand.through, order, amount=9999)
    assert (told.kind, told.facts[0]) == ("APIError", 422)
    assert NOTHING_WAS_SENT in told.text
    assert stand.double.effects(order) == 1


# What the facts make of each decline code, and of one that nobody listed.
DECLINES = {
    "requires_action": "authentication_required",
    "issuer_soft_decline": """
        approve_with_id issuer_not_available processing_error reenter_transaction try_again_later insufficient_funds
        card_velocity_exceeded withdrawal_count_limit_exceeded no_action_taken generic_decline do_not_honor call_issuer
        not_permitted service_not_allowed security_violation incorrect_cvc invalid_cvc incorrect_zip
        invalid_expiry_month invalid_expiry_year incorrect_pin invalid_pin invalid_amount offline_pin_required
        online_or_offline_pin_required""",
    "issuer_hard_decline": """
        expired_card incorrect_number invalid_number invalid_account new_account_information_available
        card_not_supported currency_not_supported lost_card stolen_card pickup_card restricted_card pin_try_exceeded
        revocation_of_authorization revocation_of_all_authorizations stop_payment_order transaction_not_allowed
        do_not_try_again testmode_decline a_code_of_tomorrow""",
    "risk_decline": "fraudulent merchant_blacklist",
}


def test_every_decline_code_reaches_the_user_and_lands_in_its_class(house: House, stand: Stand) -> None:
    expected, orders = {}, {}
    client = stripe.StripeClient("sk_test", base_addresses={"api": stand.through})
    for reading, codes in DECLINES.items():
        for code in codes.split():
            orders[code] = f"key-{stand.new_order()}"
            expected[code] = reading
            asked = params(orders[code], declined=True, code=code)
            with pytest.raises(stripe.CardError) as raised:
                client.v1.payment_intents.create(asked, {"idempotency_key": orders[code]})  # type: ignore[arg-type]
            assert raised.value.error is not None
            assert raised.value.error.decline_code == code
    readings = {row["client_key"]: row["reading"] for row in house.sidecar.operations("&provider=stripe")}
    assert {code: readings[key] for code, key in orders.items()} == expected
    assert len(expected) == 47


def test_a_duplicate_that_names_no_payment_is_an_unknown_outcome(house: House, stand: Stand) -> None:
    """The provider says that somebody has paid this, and not whether it was us."""
    key = f"key-{stand.new_order()}"
    client = stripe.StripeClient("sk_test", base_addresses={"api": stand.through})
    asked = params(key, declined=True, code="duplicate_transaction")
    with pytest.raises(stripe.APIError) as raised:
        client.v1.payment_intents.create(asked, {"idempotency_key": key})  # type: ignore[arg-type]
    assert raised.value.http_status == 504
    (operation,) = [row for row in house.sidecar.operations("&provider=stripe") if row["client_key"] == key]
    assert (operation["reading"], operation["outcome"]) == ("already_done", "unknown")


def test_a_stored_500_is_not_sent_for_again(stand: Stand) -> None:
    order = stand.new_order()
    stand.double.befall(order, Fault.BROKEN)
    for _ in range(2):
        assert by_client(stand.through, order).kind == "APIError"
    assert len(stand.double.sent(order)) == 1
