"""Adyen, PayPal, Square, Checkout.com and Mollie: the rows that surprise, and what follows from each contract.

Which call is which and what every answer means is told case by case in policies/tests; here stands what would cost
money if somebody took it out.
"""

from __future__ import annotations

import pytest

from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import ExpectedPayment, classify
from paywitness.core.money import Money, read_money
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import ErrorsUnderKey
from paywitness.core.recognise import first_for
from paywitness.core.result import Effect, ResultClass
from paywitness.policy.book import load_content
from paywitness.policy.explain import FailureScenario, explain
from tests.policy.shipped import BOOK, TEN, answered, capture, order, policy
from tests.policy.texts import matched


def money_of(found: Policy, body: Tree) -> Money | None:
    if found.amount is None or found.currency is None:
        return None
    return read_money(found.amount.at(body), found.currency(body), found.amount.unit)


# -- which call is which ----------------------------------------------------------------------------------------------

EUR = {"currency": "EUR", "value": "10.00"}
UNITS = [{"amount": {"value": "4.00", "currency_code": "EUR"}}, {"amount": {"value": "6.00", "currency_code": "EUR"}}]


@pytest.mark.parametrize(
    ("provider", "call", "body", "name", "money"),
    [
        ("adyen", "POST /v72/payments", {"amount": {"value": 1000, "currency": "EUR"}}, "payment", TEN),
        ("adyen", "POST /v71/payments/details", {}, "details", None),
        ("adyen", "POST /v72/payments/P1/captures", {"amount": {"value": 1000, "currency": "EUR"}}, "capture", TEN),
        ("adyen", "POST /v72/payments/P1/cancels", {}, "void", None),
        ("paypal", "POST /v2/checkout/orders", {"intent": "CAPTURE", "purchase_units": UNITS}, "create_order", None),
        ("paypal", "POST /v2/checkout/orders/O1/capture", {}, "capture_order", None),
        ("paypal", "POST /v2/payments/authorizations/A1/void", {}, "void", None),
        ("square", "POST /v2/payments", {"autocomplete": False}, "authorization", None),
        ("square", "POST /v2/payments", {"amount_money": {"amount": 1000, "currency": "EUR"}}, "sale", TEN),
        ("square", "POST /v2/payments/p1/complete", {}, "capture", None),
        ("square", "POST /v2/payments/p1/cancel", {}, "void", None),
        ("checkout", "POST /payments", {"amount": 1000, "currency": "EUR"}, "sale", TEN),
        ("checkout", "POST /payments", {"amount": 1000, "currency": "EUR", "capture": False}, "authorization", TEN),
        ("checkout", "POST /payments", {"capture": False, "destination": {"type": "card"}}, "payout", None),
        ("mollie", "POST /v2/payments", {"amount": EUR}, "sale", TEN),
        ("mollie", "POST /v2/customers/cst_1/payments", {"amount": EUR, "captureMode": "manual"}, "authorization", TEN),
        ("mollie", "DELETE /v2/payments/tr_1", {}, "void", None),
        ("mollie", "POST /v2/customers/cst_1/subscriptions", {}, "subscription", None),
    ],
)
def test_a_call_is_recognised(provider, call, body, name, money):
    method, _, path = call.partition(" ")
    found = first_for(BOOK.candidates(provider, method, tuple(path[1:].split("/"))), body)
    assert found is not None
    assert found[0].operation == name
    if money is not None:
        assert money_of(found[0], body) == money


@pytest.mark.parametrize(
    ("provider", "call"),
    [
        ("adyen", "POST /v72/cancels"),
        ("adyen", "POST /v72/paymentLinks"),
        ("paypal", "POST /v1/oauth2/token"),
        ("square", "POST /v2/payments/cancel"),
        ("checkout", "POST /payments/search/more"),
        ("mollie", "POST /v2/payment-links"),
    ],
)
def test_what_moves_no_money_by_itself_is_no_operation(provider, call):
    method, _, path = call.partition(" ")
    assert not matched(BOOK, provider, method, path, {})[0]


def test_paypals_amounts_are_summed_over_the_units_and_the_items():
    order = {"intent": "CAPTURE", "payment_source": {"card": {}}, "purchase_units": UNITS}
    assert money_of(policy("paypal.order_sale"), order) == TEN
    items = [{"amount": {"value": "9.87", "currency": "EUR"}}, {"amount": {"value": "0.13", "currency": "EUR"}}]
    assert money_of(policy("paypal.payout"), {"items": items}) == TEN


# -- what an answer means ---------------------------------------------------------------------------------------------


def square_error(code: str, category: str = "PAYMENT_METHOD_ERROR") -> dict[str, object]:
    return {"errors": [{"category": category, "code": code}]}


@pytest.mark.parametrize(
    ("name", "status_code", "body", "reading", "effect"),
    [
        ("adyen.payment", 200, {"resultCode": "Refused", "refusalReasonCode": "6"}, "issuer_hard_decline", "none"),
        ("adyen.payment", 200, {"resultCode": "Error", "refusalReasonCode": "9"}, "issuer_soft_decline", "none"),
        ("adyen.payment", 200, {"resultCode": "Refused", "refusalReasonCode": "20"}, "risk_decline", "none"),
        ("adyen.payment", 200, {"resultCode": "Refused", "refusalReasonCode": "999"}, "issuer_hard_decline", "none"),
        ("adyen.payment", 200, {"resultCode": "Refused", "refusalReasonCode": "38"}, "requires_action", "none"),
        ("adyen.payment", 200, {"resultCode": "ChallengeShopper", "action": {}}, "requires_action", "none"),
        ("adyen.payment", 200, {"resultCode": "NewWord"}, "unknown_outcome", "possible"),
        ("adyen.capture", 201, {"status": "received", "pspReference": "M1"}, "pending", "done"),
        ("adyen.payment", 422, {"errorCode": "704"}, "idempotency_in_flight", "possible"),
        ("adyen.payment", 422, {"errorCode": "14_030"}, "validation_error", "none"),
        ("adyen.payment", 500, {"errorCode": "905", "errorType": "configuration"}, "validation_error", "none"),
        ("adyen.payment", 500, {"errorType": "internal"}, "temporary_provider_error", "possible"),
        ("paypal.order_sale", 201, order("COMPLETED", capture("COMPLETED")), "succeeded", "done"),
        ("paypal.order_sale", 201, {"id": "O1", "status": "COMPLETED"}, "unknown_outcome", "possible"),
        (
            "paypal.order_sale",
            201,
            order("COMPLETED", capture("DECLINED", response_code="5120")),
            "issuer_soft_decline",
            "none",
        ),
        (
            "paypal.order_sale",
            201,
            order("COMPLETED", capture("DECLINED", response_code="5120", payment_advice_code="03")),
            "issuer_hard_decline",
            "none",
        ),
        ("paypal.order_sale", 201, order("COMPLETED", capture("DECLINED")), "issuer_hard_decline", "none"),
        (
            "paypal.order_sale",
            201,
            order("COMPLETED", capture("DECLINED"), capture("COMPLETED")),
            "unknown_outcome",
            "possible",
        ),
        ("paypal.capture_order", 201, order("COMPLETED", capture("PENDING")), "pending", "done"),
        ("paypal.order_sale", 200, {"status": "PAYER_ACTION_REQUIRED"}, "requires_action", "none"),
        ("paypal.capture_order", 422, {"details": [{"issue": "INSTRUMENT_DECLINED"}]}, "issuer_soft_decline", "none"),
        ("paypal.capture_order", 422, {"details": [{"issue": "ORDER_ALREADY_CAPTURED"}]}, "already_done", "possible"),
        (
            "paypal.refund",
            409,
            {"details": [{"issue": "PREVIOUS_REQUEST_IN_PROGRESS"}]},
            "idempotency_in_flight",
            "possible",
        ),
        ("paypal.refund", 422, {"details": [{"issue": "NEVER_HEARD_OF"}]}, "validation_error", "none"),
        ("paypal.void", 204, b"", "succeeded", "done"),
        ("paypal.capture", 204, b"", "unknown_outcome", "possible"),
        ("paypal.payout", 201, {"batch_header": {"batch_status": "PENDING"}}, "pending", "done"),
        ("square.sale", 200, {"payment": {"id": "p1", "status": "APPROVED"}}, "succeeded", "done"),
        ("square.sale", 402, square_error("CARD_EXPIRED"), "issuer_hard_decline", "none"),
        ("square.sale", 400, square_error("NEVER_HEARD_OF"), "issuer_hard_decline", "none"),
        (
            "square.sale",
            400,
            square_error("IDEMPOTENCY_KEY_REUSED", "INVALID_REQUEST_ERROR"),
            "idempotency_conflict",
            "possible",
        ),
        ("square.sale", 400, square_error("VALUE_TOO_LONG", "INVALID_REQUEST_ERROR"), "validation_error", "none"),
        ("square.sale", 503, square_error("TEMPORARY_ERROR", "API_ERROR"), "temporary_provider_error", "possible"),
        ("square.sale", 500, square_error("NEVER_HEARD_OF"), "temporary_provider_error", "possible"),
        ("square.capture", 400, square_error("DELAYED_TRANSACTION_CAPTURED"), "already_done", "possible"),
        ("checkout.sale", 201, {"status": "Declined", "response_code": "20051"}, "issuer_soft_decline", "none"),
        ("checkout.sale", 201, {"status": "Declined", "response_code": "20054"}, "issuer_hard_decline", "none"),
        ("checkout.sale", 201, {"status": "Declined", "response_code": "30004"}, "issuer_hard_decline", "none"),
        ("checkout.sale", 201, {"status": "Declined", "response_code": "40101"}, "risk_decline", "none"),
        ("checkout.sale", 201, {"status": "Declined", "response_code": "20154"}, "requires_action", "none"),
        ("checkout.sale", 201, {"status": "Declined"}, "issuer_hard_decline", "none"),
        ("checkout.sale", 202, {"status": "Pending", "_links": {"redirect": {"href": "x"}}}, "requires_action", "none"),
        ("checkout.sale", 202, {"status": "Pending"}, "pending", "done"),
        ("checkout.capture", 202, {"action_id": "act_1"}, "pending", "done"),
        ("checkout.sale", 409, {}, "idempotency_in_flight", "possible"),
        ("mollie.sale", 201, {"status": "open", "_links": {"checkout": {"href": "x"}}}, "requires_action", "none"),
        ("mollie.sale", 201, {"status": "pending"}, "pending", "done"),
        (
            "mollie.sale",
            201,
            {"status": "failed", "details": {"failureReason": "possible_fraud"}},
            "risk_decline",
            "none",
        ),
        ("mollie.refund", 409, {"detail": "A duplicate refund has been detected"}, "already_done", "possible"),
        ("mollie.refund", 409, {"detail": "Being processed"}, "idempotency_in_flight", "possible"),
        ("mollie.sale", 503, {"detail": "The supplier is down"}, "temporary_provider_error", "possible"),
        ("mollie.refund_cancel", 204, b"", "succeeded", "done"),
    ],
)
def test_an_answer_is_read(name, status_code, body, reading, effect):
    found = classify(answered(status_code, body), policy(name).classify)
    assert (found.result_class, found.effect) == (ResultClass(reading), Effect(effect))


def test_adyens_word_that_nothing_was_done_is_believed():
    hint = (b"transient-error", b"true")
    payment = policy("adyen.payment").classify
    found = classify(answered(503, {"errorCode": "703"}, hint), payment)
    assert (found.result_class, found.effect) == (ResultClass.TEMPORARY_PROVIDER_ERROR, Effect.NONE)
    # But not of a key whose first call is still under way.
    assert classify(answered(422, {"errorCode": "704"}, hint), payment).effect is Effect.POSSIBLE


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("adyen.payment", {"resultCode": "Authorised", "amount": {"value": 900, "currency": "EUR"}}),
        (
            "paypal.order_sale",
            {
                **order("COMPLETED", capture("COMPLETED")),
                "purchase_units": [{**UNITS[0], "payments": {"captures": [capture("COMPLETED")]}}],
            },
        ),
        ("square.sale", {"payment": {"status": "COMPLETED", "amount_money": {"amount": 1000, "currency": "USD"}}}),
        ("checkout.sale", {"status": "Authorized", "amount": 900, "currency": "EUR"}),
        ("mollie.sale", {"status": "paid", "amount": {"value": "9.00", "currency": "EUR"}}),
    ],
)
def test_a_success_over_another_amount_is_doubt(name, body):
    assert classify(answered(200, body), policy(name).classify).result_class is ResultClass.SUCCEEDED
    assert classify(answered(200, body), policy(name).classify, ExpectedPayment(TEN)).effect is Effect.POSSIBLE


def test_a_part_that_says_it_is_one_is_passed_on():
    part = {"resultCode": "PartiallyAuthorised", "amount": {"value": 400, "currency": "EUR"}}
    assert classify(answered(200, part), policy("adyen.payment").classify, ExpectedPayment(TEN)).effect is Effect.DONE
    other = {"status": "Authorized", "response_code": "10010", "amount": 400, "currency": "EUR"}
    assert classify(answered(201, other), policy("checkout.sale").classify, ExpectedPayment(TEN)).effect is Effect.DONE


# -- what follows -----------------------------------------------------------------------------------------------------

TIMEOUT, SERVER_ERROR = ResultClass.NETWORK_READ_TIMEOUT, ResultClass.TEMPORARY_PROVIDER_ERROR
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("name", "failure", "age_s", "rule"),
    [
        ("adyen.payment", TIMEOUT, 1, "in_doubt_same_key_is_safe"),
        ("adyen.payment", SERVER_ERROR, 1, "in_doubt_expect_webhook"),
        ("adyen.details", SERVER_ERROR, 1, "in_doubt_expect_webhook"),
        ("paypal.order_sale", TIMEOUT, 1, "in_doubt_same_key_is_safe"),
        ("paypal.order_sale", SERVER_ERROR, 4 * HOUR_S, "in_doubt_same_key_is_safe"),
        ("paypal.order_sale", SERVER_ERROR, 5 * HOUR_S, "in_doubt_ask"),
        ("paypal.capture", SERVER_ERROR, 30 * 24 * HOUR_S, "in_doubt_same_key_is_safe"),
        ("paypal.payout", SERVER_ERROR, 25 * 24 * HOUR_S, "in_doubt_ask"),
        ("square.sale", TIMEOUT, 300, "in_doubt_same_key_is_safe"),
        ("square.sale", TIMEOUT, 540, "in_doubt_ask"),
        ("square.sale", SERVER_ERROR, 1, "in_doubt_ask"),
        ("square.capture", TIMEOUT, 1, "in_doubt_ask"),
        ("checkout.sale", SERVER_ERROR, 1, "in_doubt_ask"),
        ("checkout.sale", TIMEOUT, 1, "in_doubt_ask"),
        ("mollie.sale", TIMEOUT, 0.7 * HOUR_S, "in_doubt_same_key_is_safe"),
        ("mollie.sale", TIMEOUT, 0.9 * HOUR_S, "in_doubt_ask"),
    ],
)
def test_in_doubt_the_contract_decides(name, failure, age_s, rule):
    found = explain(policy(name), FailureScenario(failure, age_s=age_s, time_left_s=30.0))
    assert found.decision.because == rule


def test_what_a_provider_does_not_document_is_marked_as_assumed():
    assumed = {
        name: set().union(*(found.contract.assumed for found in provider.policies))
        for name, provider in BOOK.providers.items()
    }
    assert assumed["adyen"] == {"errors_under_key"}
    assert assumed["square"] == {"window", "errors_under_key"}
    assert assumed["mollie"] == {"errors_under_key"}
    assert assumed["gocardless"] == {"window"}
    assert assumed["razorpay"] == assumed["paystack"] == {"window", "errors_under_key"}
    assert assumed["klarna"] == {"window", "errors_under_key"}  # of placing an order
    assert not assumed["paypal"] | assumed["checkout"] | assumed["stripe"]


def test_a_key_of_another_merchant_account_never_goes_to_adyen():
    assert not any(found.contract.key_space_is_account for found in BOOK.providers["adyen"].policies)


def test_no_key_that_is_too_long_for_its_provider_goes_out():
    longest = {name: policy(name).contract.max_length for name in ("adyen.payment", "paypal.order_sale", "square.sale")}
    assert longest == {"adyen.payment": 64, "paypal.order_sale": 108, "square.sale": 45}


def test_what_takes_no_key_is_never_sent_again():
    keyless = ("square.capture", "square.void", "checkout.reversal", "mollie.void", "mollie.refund_cancel")
    for name in (*keyless, "braintree.sale", "braintree.refund", "authorizenet.sale", "authorizenet.void"):
        assert policy(name).contract.send_as is None
        assert policy(name).contract.errors_under_key is ErrorsUnderKey.UNKNOWN
        assert policy(name).contract.supports_inquiry


def test_card_data_is_never_kept():
    kept_out = {
        "adyen": {"paymentMethod.cvc", "paymentMethod.encryptedSecurityCode"},
        "paypal": {"payment_source.card.number", "payment_source.card.security_code"},
        "checkout": {"source.number", "source.cvv"},
        "mollie": {"cardToken"},
        "braintree": {"transaction.credit_card.cvv"},
        "authorizenet": {"createTransactionRequest.transactionRequest.payment.creditCard.cardCode"},
        "razorpay": {"card.number", "card.cvv", "otp"},
        "paystack": {"card.number", "card.cvv", "pin", "otp"},
    }
    for name, paths in kept_out.items():
        assert all(paths <= set(found.never_store) for found in BOOK.providers[name].policies)


# -- on top of them ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "live"),
    [
        ("adyen", "https://acme-checkout-live.adyenpayments.com/checkout"),
        ("checkout", "https://acme.api.checkout.com"),
        ("paypal", "https://api-m.sandbox.paypal.com"),
    ],
)
def test_a_file_of_ones_own_gives_the_address(name, live):
    text = f"extends: paywitness:{name}\nupstream: {live}\nhosts: [{live.split('/')[2]}]\n"
    provider = load_content(text.encode(), f"{name}.yaml")
    assert {found.upstream for found in provider.policies} == {live}
    assert provider.hosts == (live.split("/")[2],)
