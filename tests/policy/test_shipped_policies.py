"""The shipped policies read their providers' answers as they should. Evidence is made by hand, as the wire would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paywitness.core.bodies.tree import Encoding, decode
from paywitness.core.classify import ExpectedPayment, classify
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.money import Money
from paywitness.core.policy import Policy
from paywitness.core.result import Effect, ResultClass
from paywitness.policy.book import load_directory
from paywitness.policy.check import check
from paywitness.policy.shipped_policies import shipped_directory
from tests.policy.texts import matched, operation

BOOK = load_directory(shipped_directory())
ACME, STRIPE = BOOK.providers["acme"], BOOK.providers["stripe"]


def answered(status_code: int, body: object, *headers: tuple[bytes, bytes]) -> Evidence:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = Response(status_code, b"", headers, payload)
    return Evidence(NetworkPhase.COMPLETE, 100, None, response, "", 0.1)


def read(
    policy: Policy, status_code: int, body: object, *headers: tuple[bytes, bytes]
) -> tuple[ResultClass, Effect, str]:
    found = classify(answered(status_code, body, *headers), policy.classify)
    return found.result_class, found.effect, found.rule


def error(**members: object) -> dict[str, object]:
    return {"error": members}


def test_the_shipped_policies_pass_their_own_check_with_the_warnings_that_their_providers_deserve():
    """Three make something that nothing but its own name finds: no key fetches a lost answer, no event names it."""
    report = check([shipped_directory()])
    assert report.ok
    warnings = [line.split(": ", 3) for line in report.lines if line.startswith("  warning: ")]
    assert [(Path(place).name.split(":")[0], key) for _, place, key, _ in warnings] == [
        ("braintree.yaml", "operations.credit.ask"),
        ("gocardless.yaml", "operations.withdrawal.ask"),
        ("paystack.yaml", "operations.bulk_charge.ask"),
    ]
    assert all("needs the provider's reference, which nobody has" in text for *_, text in warnings)


@pytest.mark.parametrize("path", sorted(Path(shipped_directory()).glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_policy_never_says_which_card(path):
    assert not any(marker in path.read_text() for marker in ("sk_live", "sk_test", "whsec_", "4242"))


# -- acme -------------------------------------------------------------------------------------------------------------

INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("name", "status_code", "body", "reading", "effect", "rule"),
    [
        ("sale", 200, {"status": "succeeded"}, "succeeded", "done", "answers.charge[0]"),
        ("authorization", 200, {"status": "authorized"}, "succeeded", "done", "answers.charge[0]"),
        ("sale", 200, {"status": "processing"}, "pending", "done", "answers.charge[1]"),
        ("sale", 200, {"status": "requires_action"}, "requires_action", "none", "answers.charge[2]"),
        (
            "sale",
            200,
            {"status": "failed", "failure_code": "stolen_card"},
            "issuer_hard_decline",
            "none",
            "answers.charge[3]",
        ),
        ("sale", 200, {"status": "failed", "failure_code": "what"}, "failed", "none", "answers.charge[3]"),
        ("sale", 200, {"status": "voided"}, "cancelled", "none", "answers.charge[4]"),
        ("sale", 200, {"status": "reversed"}, "reversed", "done", "answers.charge[5]"),
        ("payout", 200, {"status": "paid"}, "succeeded", "done", "answers.payout[0]"),
        ("payout", 200, {"status": "pending"}, "pending", "done", "answers.payout[1]"),
        ("payout", 200, {"status": "failed"}, "failed", "none", "answers.payout[2]"),
        ("sale", 200, {"status": "new_word"}, "unknown_outcome", "possible", "unrecognised_2xx"),
        ("sale", 200, {}, "unknown_outcome", "possible", "unrecognised_2xx"),
        ("sale", 200, b"", "unknown_outcome", "possible", "unreadable_2xx"),
        ("sale", 200, b"<html>", "unknown_outcome", "possible", "unreadable_2xx"),
        ("sale", 402, error(decline_code="insufficient_funds"), "issuer_soft_decline", "none", "classify[3]"),
        ("sale", 402, error(decline_code="expired_card"), "issuer_hard_decline", "none", "classify[3]"),
        ("sale", 402, error(decline_code="fraudulent"), "risk_decline", "none", "classify[3]"),
        ("sale", 402, error(decline_code="unheard_of"), "issuer_hard_decline", "none", "http_402"),
        ("sale", 400, error(type=INVALID), "validation_error", "none", "http_400"),
        ("sale", 400, error(type="idempotency_error"), "idempotency_conflict", "possible", "classify[1]"),
        ("sale", 429, error(type="rate_limit"), "rate_limited", "none", "http_429"),
        ("sale", 401, b"", "authentication_error", "none", "http_401"),
        ("sale", 500, error(type="api_error"), "temporary_provider_error", "possible", "http_500"),
        ("sale", 503, error(code="overloaded"), "temporary_provider_error", "none", "classify[4]"),
        ("sale", 503, error(code="other"), "temporary_provider_error", "possible", "http_503"),
        ("sale", 502, b"<html>", "temporary_provider_error", "possible", "http_502"),
        ("sale", 504, b"<html>", "provider_timeout", "possible", "http_504"),
        ("sale", 409, b"<html>", "unknown_outcome", "possible", "foreign_page"),
        ("sale", 403, b"<html>", "unknown_outcome", "possible", "foreign_page"),
        ("capture", 200, {"status": "succeeded", "capture": {"id": "cp_1"}}, "succeeded", "done", "answers.capture[0]"),
        (
            "capture",
            200,
            {"status": "authorized", "captured": False},
            "unknown_outcome",
            "possible",
            "unrecognised_2xx",
        ),
        (
            "capture",
            409,
            error(type=INVALID, code="charge_already_captured"),
            "already_done",
            "possible",
            "classify[2]",
        ),
        ("capture", 409, error(type=INVALID, code="charge_not_authorized"), "validation_error", "none", "classify[2]"),
        ("void", 200, {"status": "voided"}, "succeeded", "done", "answers.voided_charge[0]"),
        ("void", 409, error(type=INVALID, code="charge_already_voided"), "already_done", "possible", "classify[2]"),
        ("refund", 200, {"status": "succeeded"}, "succeeded", "done", "answers.refund[0]"),
        ("refund", 409, error(type=INVALID, code="charge_already_refunded"), "already_done", "possible", "classify[2]"),
    ],
)
def test_acme_is_read(name, status_code, body, reading, effect, rule):
    assert read(operation(ACME, name), status_code, body) == (ResultClass(reading), Effect(effect), rule)


def test_acmes_key_in_use_is_not_taken_for_a_conflict():
    body = error(type="idempotency_error", code="idempotency_key_in_use")
    assert read(operation(ACME, "sale"), 409, body)[0] is ResultClass.IDEMPOTENCY_IN_FLIGHT


def test_acmes_answer_over_another_amount_is_doubt():
    asked = ExpectedPayment(Money(1099, "EUR"))
    rules = operation(ACME, "sale").classify
    body = {"id": "ch_1", "status": "succeeded", "amount": 1099, "currency": "eur"}
    fitting = classify(answered(200, body), rules, asked)
    assert (fitting.result_class, fitting.reference) == (ResultClass.SUCCEEDED, "ch_1")
    for wrong in ({"amount": 999}, {"currency": "usd"}):
        assert classify(answered(200, {**body, **wrong}), rules, asked).effect is Effect.POSSIBLE


@pytest.mark.parametrize(
    ("method", "path", "body", "name", "parameters"),
    [
        ("POST", "/v1/charges", {"amount": 1, "capture": False}, "authorization", {}),
        ("POST", "/v1/charges", {"amount": 1, "capture": True}, "sale", {}),
        ("POST", "/v1/charges", {"amount": 1}, "sale", {}),
        ("POST", "/v1/orders/o1/pay", {"amount": 1}, "sale", {"order": "o1"}),
        ("POST", "/v1/charges/ch_1/capture", {}, "capture", {"charge": "ch_1"}),
        ("POST", "/v1/charges/ch_1/void", {}, "void", {"charge": "ch_1"}),
        ("POST", "/v1/charges/ch_1/refunds", {}, "refund", {"charge": "ch_1"}),
        ("POST", "/v1/payouts", {"amount": 1}, "payout", {}),
    ],
)
def test_acmes_calls_are_recognised(method, path, body, name, parameters):
    assert matched(BOOK, "acme", method, path, body) == (name, parameters)


def test_acmes_reads_are_no_operation():
    assert not BOOK.candidates("acme", "GET", ("v1", "charges", "ch_1"))


# -- stripe -----------------------------------------------------------------------------------------------------------

# stripe-go 86.2.0, error.go: every DeclineCode.
DECLINE_CODES = """
approve_with_id authentication_required call_issuer card_not_supported card_velocity_exceeded currency_not_supported
do_not_honor do_not_try_again duplicate_transaction expired_card fraudulent generic_decline incorrect_cvc
incorrect_number incorrect_pin incorrect_zip insufficient_funds invalid_account invalid_amount invalid_cvc
invalid_expiry_month invalid_expiry_year invalid_number invalid_pin issuer_not_available lost_card merchant_blacklist
new_account_information_available no_action_taken not_permitted offline_pin_required online_or_offline_pin_required
pickup_card pin_try_exceeded processing_error reenter_transaction restricted_card revocation_of_all_authorizations
revocation_of_authorization security_violation service_not_allowed stolen_card stop_payment_order testmode_decline
transaction_not_allowed try_again_later withdrawal_count_limit_exceeded
""".split()


def test_all_47_decline_codes_of_stripe_have_their_bucket():
    assert len(DECLINE_CODES) == 47
    table = next(row.table for row in operation(STRIPE, "sale").classify.answers if row.table)
    assert sorted(table) == sorted(DECLINE_CODES)


@pytest.mark.parametrize("code", DECLINE_CODES)
def test_a_decline_of_stripe_ends_without_effect_or_is_asked_about(code):
    reading, effect, _ = read(operation(STRIPE, "sale"), 402, error(type="card_error", decline_code=code))
    if code == "duplicate_transaction":
        assert (reading, effect) == (ResultClass.ALREADY_DONE, Effect.POSSIBLE)
    else:
        assert effect is Effect.NONE
        assert (reading is ResultClass.REQUIRES_ACTION) == (code == "authentication_required")


BLOCKED = {"latest_charge": {"outcome": {"type": "blocked"}}}


@pytest.mark.parametrize(
    ("name", "status_code", "body", "reading", "effect"),
    [
        ("sale", 200, {"status": "succeeded"}, "succeeded", "done"),
        ("sale", 200, {"status": "requires_capture"}, "succeeded", "done"),
        ("sale", 200, {"status": "processing"}, "pending", "done"),
        ("sale", 200, {"status": "requires_action"}, "requires_action", "none"),
        ("sale", 200, {"status": "canceled"}, "cancelled", "none"),
        ("sale", 200, {"status": "requires_confirmation"}, "unknown_outcome", "possible"),
        (
            "confirm",
            200,
            {"status": "requires_payment_method", "last_payment_error": {"decline_code": "lost_card"}},
            "issuer_hard_decline",
            "none",
        ),
        ("create_intent", 200, {"status": "requires_confirmation"}, "succeeded", "done"),
        ("sale", 400, error(type="idempotency_error"), "idempotency_conflict", "possible"),
        (
            "sale",
            409,
            error(code="idempotency_key_in_use", type="idempotency_error"),
            "idempotency_in_flight",
            "possible",
        ),
        ("sale", 409, error(type="invalid_request_error"), "unknown_outcome", "possible"),
        ("sale", 429, error(code="lock_timeout"), "rate_limited", "none"),
        ("sale", 400, error(code="lock_timeout"), "temporary_provider_error", "possible"),
        ("sale", 400, error(code="rate_limit"), "rate_limited", "none"),
        ("sale", 400, error(type="invalid_request_error", code="parameter_missing"), "validation_error", "none"),
        ("confirm", 400, error(code="payment_intent_unexpected_state"), "already_done", "possible"),
        ("capture", 400, error(code="charge_expired_for_capture"), "validation_error", "none"),
        ("capture", 404, error(code="resource_missing"), "validation_error", "none"),
        ("sale", 400, error(code="testmode_charges_only"), "authentication_error", "none"),
        ("sale", 401, error(type="invalid_request_error"), "authentication_error", "none"),
        ("sale", 402, error(decline_code="generic_decline", payment_intent=BLOCKED), "risk_decline", "none"),
        (
            "sale",
            402,
            error(decline_code="do_not_honor", advice_code="do_not_try_again"),
            "issuer_hard_decline",
            "none",
        ),
        ("sale", 402, error(decline_code="fraudulent", advice_code="do_not_try_again"), "risk_decline", "none"),
        ("sale", 402, error(decline_code="stolen_card", advice_code="try_again_later"), "issuer_soft_decline", "none"),
        ("sale", 402, error(code="payment_intent_authentication_failure"), "issuer_hard_decline", "none"),
        ("sale", 402, error(code="never_heard_of"), "issuer_hard_decline", "none"),
        ("sale", 424, error(type="api_error"), "unknown_outcome", "possible"),
        ("sale", 500, error(type="api_error"), "temporary_provider_error", "possible"),
        ("capture", 200, {"status": "succeeded", "amount_received": 5}, "succeeded", "done"),
        ("capture", 200, {"status": "requires_capture", "amount_received": 5}, "succeeded", "done"),
        ("capture", 200, {"status": "requires_capture", "amount_received": 0}, "unknown_outcome", "possible"),
        ("void", 200, {"status": "canceled"}, "succeeded", "done"),
        ("refund", 200, {"object": "refund", "status": "pending"}, "pending", "done"),
        ("refund", 200, {"object": "refund", "status": "succeeded"}, "succeeded", "done"),
        ("charge_refund", 200, {"object": "refund", "status": "failed"}, "failed", "none"),
        ("payout", 200, {"object": "payout", "status": "in_transit"}, "pending", "done"),
        ("payout", 200, {"object": "payout", "status": "paid"}, "succeeded", "done"),
        ("transfer", 200, {"object": "transfer", "id": "tr_1", "reversed": False}, "succeeded", "done"),
        ("transfer", 200, {"object": "transfer", "id": "tr_1", "reversed": True}, "reversed", "done"),
        ("charge", 200, {"object": "charge", "status": "succeeded"}, "succeeded", "done"),
        ("charge_capture", 200, {"object": "charge", "status": "succeeded", "captured": True}, "succeeded", "done"),
    ],
)
def test_stripe_is_read(name, status_code, body, reading, effect):
    assert read(operation(STRIPE, name), status_code, body)[:2] == (ResultClass(reading), Effect(effect))


def test_stripes_hint_is_believed_where_nothing_is_stored_and_nowhere_else():
    hint = (b"Stripe-Should-Retry", b"true")
    sale = operation(STRIPE, "sale")
    assert read(sale, 409, error(type="invalid_request_error"), hint)[0] is ResultClass.IDEMPOTENCY_IN_FLIGHT
    assert read(sale, 500, error(type="api_error"), hint)[:2] == (ResultClass.TEMPORARY_PROVIDER_ERROR, Effect.POSSIBLE)


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/payment_intents", b"amount=1&currency=eur", "create_intent"),
        ("/v1/payment_intents", b"amount=1&currency=eur&confirm=false", "create_intent"),
        ("/v1/payment_intents", b"amount=1&currency=eur&confirm=true", "sale"),
        ("/v1/payment_intents/pi_1/confirm", b"", "confirm"),
        ("/v1/payment_intents/pi_1/capture", b"", "capture"),
        ("/v1/payment_intents/pi_1/cancel", b"", "void"),
        ("/v1/payment_intents/pi_1/increment_authorization", b"amount=5", "increment"),
        ("/v1/refunds", b"payment_intent=pi_1", "refund"),
        ("/v1/charges/ch_1/refunds", b"", "charge_refund"),
        ("/v1/charges/ch_1/capture", b"", "charge_capture"),
        ("/v1/payouts", b"amount=1&currency=eur", "payout"),
        ("/v1/transfers", b"amount=1&currency=eur&destination=acct_1", "transfer"),
        ("/v1/charges", b"amount=1&currency=eur", "charge"),
    ],
)
def test_stripes_calls_are_recognised(path, body, name):
    assert matched(BOOK, "stripe", "POST", path, decode(body, Encoding.FORM))[0] == name


def test_stripe_is_stamped_only_where_the_metadata_are_the_calls_own():
    stamped = {policy.operation for policy in STRIPE.policies if policy.stamp is not None}
    assert stamped == {"sale", "refund", "charge_refund", "payout", "transfer", "charge"}
