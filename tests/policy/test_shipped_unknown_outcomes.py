"""Providers in doubt: what an inquiry or an event of theirs proves, and what it does not."""

from __future__ import annotations

import pytest

from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import ExpectedPayment
from paywitness.core.evidence import Response
from paywitness.core.inquiry import filled_body, read_inquiry, read_object
from paywitness.core.operation import FindingKind
from paywitness.core.result import ResultClass
from paywitness.core.template import TemplateValues
from paywitness.core.webhook_event import MatchKey, WebhookEvent, object_and_rules, webhook_events_in
from tests.policy.shipped import BOOK, NOTHING, TEN, answered, capture, order, policy
from tests.policy.texts import an_operation

# -- asking -----------------------------------------------------------------------------------------------------------


def looked(
    name: str, index: int, body: object, tree: object, asked: ExpectedPayment = NOTHING
) -> tuple[FindingKind, ResultClass | None]:
    found = policy(name)
    sent = an_operation(first_sent_at=1_800_000_000.0, stamp="op_1")
    values = TemplateValues(sent, {"payment": "pay_1", "order": "O1", "authorization": "A1"}, tree)
    inquiry = found.inquiries[index]
    assert inquiry.target(values) is not None
    finding = read_inquiry(inquiry, answered(200, body), found.classify, asked, values).finding
    return finding.kind, finding.classification.result_class if finding.classification is not None else None


BASKET = {"reference_id": "B1", "location_id": "L1"}


def listed(status: str, reference_id: str = "B1", amount: int = 1000) -> dict[str, object]:
    money = {"amount": amount, "currency": "EUR"}
    return {"id": "p1", "status": status, "reference_id": reference_id, "amount_money": money}


def test_square_is_asked_by_reference_within_the_time_it_was_sent():
    found = ExpectedPayment(TEN)
    assert looked("square.sale", 1, {"payments": [listed("COMPLETED")]}, BASKET, found)[1] is ResultClass.SUCCEEDED
    assert looked("square.sale", 1, {"payments": [listed("COMPLETED", "B2")]}, BASKET, found)[0] is FindingKind.MISSED
    assert (
        looked("square.sale", 1, {"payments": [listed("COMPLETED", amount=900)]}, BASKET, found)[0]
        is FindingKind.NOT_OURS
    )
    assert looked("square.sale", 1, {"payments": [], "cursor": "more"}, BASKET, found)[0] is FindingKind.FAILED
    assert policy("square.sale").inquiries[1].target(TemplateValues(an_operation(first_sent_at=1.0), {}, {})) is None


def test_another_try_of_the_order_that_failed_does_not_deny_ours():
    for status in ("FAILED", "CANCELED"):
        assert looked("square.sale", 1, {"payments": [listed(status)]}, BASKET)[0] is FindingKind.MISSED
    paid = {"payments": [listed("FAILED"), listed("COMPLETED")]}
    assert looked("square.sale", 1, paid, BASKET) == (FindingKind.HIT, ResultClass.SUCCEEDED)


def test_checkout_is_asked_by_reference_and_told_apart_by_the_stamp():
    ours, theirs = {"metadata": {"paywitness": "op_1"}}, {"metadata": {"paywitness": "op_2"}}
    found = {"reference": "ORD-1"}

    def look(*payments: object) -> tuple[FindingKind, ResultClass | None]:
        return looked("checkout.sale", 1, {"total_count": len(payments), "data": list(payments)}, found)

    assert look({"status": "Declined", "response_code": "20051", **ours})[1] is ResultClass.ISSUER_SOFT_DECLINE
    assert look({"status": "Captured", **theirs})[0] is FindingKind.MISSED
    assert look({"status": "Captured", **theirs}, {"status": "Authorized", **ours})[1] is ResultClass.SUCCEEDED
    assert look({"status": "Authorized"})[1] is ResultClass.SUCCEEDED  # a list that shows no metadata
    assert look({"status": "Declined", "response_code": "20051"})[0] is FindingKind.MISSED


def test_an_action_of_checkout_that_is_not_listed_is_not_known_to_be_absent():
    other = [{"id": "act_1", "type": "Refund", "approved": True}]
    assert looked("checkout.refund", 1, other, {})[0] is FindingKind.FAILED
    ours = [*other, {"id": "act_2", "type": "Refund", "approved": True, "metadata": {"paywitness": "op_1"}}]
    assert looked("checkout.refund", 1, ours, {}) == (FindingKind.HIT, ResultClass.SUCCEEDED)


def test_an_order_that_nobody_captured_is_a_miss():
    assert looked("paypal.capture_order", 0, {"id": "O1", "status": "APPROVED"}, {})[0] is FindingKind.MISSED
    assert looked("paypal.capture_order", 0, order("COMPLETED", capture("COMPLETED")), {})[1] is ResultClass.SUCCEEDED


def test_an_authorization_that_stands_does_not_deny_a_capture_of_it():
    shown = {"id": "A1", "amount": {"value": "99.00", "currency_code": "EUR"}}
    assert (
        looked("paypal.capture", 1, {**shown, "status": "CREATED"}, {}, ExpectedPayment(TEN))[0] is FindingKind.FAILED
    )
    assert (
        looked("paypal.capture", 1, {**shown, "status": "CAPTURED"}, {}, ExpectedPayment(TEN))[1]
        is ResultClass.SUCCEEDED
    )


def test_braintrees_orders_are_searched_from_when_they_were_sent_and_credits_not_at_all():
    asked = {"transaction": {"order_id": "ORD-1", "amount": "10.99", "type": "sale"}}
    sent = TemplateValues(an_operation(first_sent_at=1_800_000_000.0), {"merchant": "shop"}, asked)
    _, search = policy("braintree.sale").inquiries
    sought = {
        "order_id": {"is": "ORD-1"},
        "created_at": {"min": {"@type": "datetime", "#text": "2027-01-14T08:00:00Z"}},
    }
    assert filled_body(search.body, sent) == {"search": sought}
    assert [inquiry.target(sent) for inquiry in policy("braintree.credit").inquiries] == [None]


def test_squares_cancel_names_the_key():
    cancel = policy("square.sale").cancel
    assert cancel is not None
    values = TemplateValues(an_operation(provider_key="key-1"), {})
    assert [(path, text.filled(values)) for path, text in cancel.body] == [(("idempotency_key",), "key-1")]
    assert cancel.target(values) == "/v2/payments/cancel"


def test_adyens_cancel_names_the_payment_by_its_own_reference():
    cancel = policy("adyen.payment").cancel
    assert cancel is not None
    values = TemplateValues(an_operation(), {"version": "v72"}, {"reference": "ORD-1", "merchantAccount": "Shop"})
    assert cancel.target(values) == "/v72/cancels"
    body = {".".join(path): text.filled(values) for path, text in cancel.body}
    assert body == {"paymentReference": "ORD-1", "reference": "ORD-1", "merchantAccount": "Shop"}


# -- events -----------------------------------------------------------------------------------------------------------


def told(provider: str, delivery: object) -> list[WebhookEvent]:
    rules = BOOK.providers[provider].webhook_rules
    assert rules is not None
    return list(webhook_events_in(rules, delivery))


def read_event(name: str, event: Tree, asked: ExpectedPayment = NOTHING) -> ResultClass | None:
    provider = BOOK.providers[name.partition(".")[0]]
    assert provider.webhook_rules is not None
    shown, rows = object_and_rules(provider.webhook_rules, event)
    response = Response(200, b"", (), b"")
    rules = policy(name).classify
    seen = read_object(
        "event", rows, rules, asked, response, shown, event=event, event_rows=provider.webhook_rules.read
    )
    found = seen.finding
    return found.classification.result_class if found.classification is not None else None


def adyen_item(code: str, *, success: str = "true", **more: object) -> dict[str, object]:
    item = {"eventCode": code, "success": success, "pspReference": "P1", "merchantReference": "ORD-1"}
    return {"NotificationRequestItem": {**item, "merchantAccountCode": "Shop", **more}}


def test_adyens_delivery_is_many_events_each_with_an_id_of_its_own():
    items = [adyen_item("AUTHORISATION"), adyen_item("REPORT_AVAILABLE"), adyen_item("CAPTURE", success="false")]
    first, second = told("adyen", {"notificationItems": items})
    assert (first.event_id, first.account) == ("AUTHORISATION:P1:true", "Shop")
    assert second.event_id == "CAPTURE:P1:false"
    assert first.match_values == ((MatchKey.REFERENCE, "P1"), (MatchKey.INTENT, "ORD-1"))
    assert second.match_values == ((MatchKey.REFERENCE, "P1"),)  # a capture is not the payment that it is of


def test_a_refusal_is_never_found_by_the_order_alone():
    """Another try of the same order may be the one that was refused: ours may have been paid."""
    (refused,) = told("adyen", {"notificationItems": [adyen_item("AUTHORISATION", success="false")]})
    failed = {"id": "p1", "status": "FAILED", "reference_id": "B1"}
    (square,) = told(
        "square", {"event_id": "e1", "data": {"type": "payment", "id": "p1", "object": {"payment": failed}}}
    )
    denied = {"id": "C1", "status": "DECLINED", "invoice_id": "INV-1"}
    event = {"id": "WH-1", "event_type": "PAYMENT.CAPTURE.DENIED", "resource_type": "capture", "resource": denied}
    (paypal,) = told("paypal", event)
    for notice in (refused, square, paypal):
        assert [finder for finder, _ in notice.match_values] == [MatchKey.REFERENCE]


@pytest.mark.parametrize(
    ("name", "code", "success", "reading"),
    [
        ("adyen.payment", "AUTHORISATION", "true", ResultClass.SUCCEEDED),
        ("adyen.payment", "AUTHORISATION", "false", ResultClass.FAILED),
        ("adyen.payment", "TECHNICAL_CANCEL", "true", ResultClass.CANCELLED),
        ("adyen.payment", "TECHNICAL_CANCEL", "false", None),
        ("adyen.capture", "CAPTURE", "true", ResultClass.SUCCEEDED),
        ("adyen.capture", "CAPTURE_FAILED", "true", ResultClass.FAILED),
        ("adyen.void", "CANCELLATION", "true", ResultClass.SUCCEEDED),
    ],
)
def test_adyens_event_is_read(name, code, success, reading):
    assert read_event(name, adyen_item(code, success=success)["NotificationRequestItem"]) is reading


def test_a_capture_of_an_authorization_is_not_told_to_the_order():
    related = {"order_id": "O1"}
    resource = {
        "id": "C1",
        "status": "COMPLETED",
        "invoice_id": "INV-1",
        "supplementary_data": {"related_ids": related},
    }
    event = {"id": "WH-1", "event_type": "PAYMENT.CAPTURE.COMPLETED", "resource_type": "capture", "resource": resource}
    (notice,) = told("paypal", event)
    assert notice.match_values == ((MatchKey.REFERENCE, "C1"), (MatchKey.REFERENCE, "O1"), (MatchKey.INTENT, "INV-1"))
    assert read_event("paypal.order_sale", event) is ResultClass.SUCCEEDED
    related["authorization_id"] = "A1"
    (notice,) = told("paypal", event)
    assert notice.match_values == ((MatchKey.REFERENCE, "C1"),)


def test_an_order_keeps_its_own_name_when_an_event_shows_its_capture():
    reference = policy("paypal.order_sale").classify.reference
    assert reference is not None
    assert reference({"id": "O1", "status": "COMPLETED"}) == "O1"
    assert reference({"id": "C1", "amount": {"value": "1.00"}}) is False


def test_a_repeat_is_never_answered_with_another_kind_of_object():
    """What closed the first call may have been an event about a part of it."""
    for name in ("order_sale", "order_authorization", "capture_order", "authorize"):
        as_response = policy(f"paypal.{name}").as_response
        assert as_response is not None
        assert as_response({"id": "C1", "status": "COMPLETED", "amount": {}}) is None
        whole = order("COMPLETED", capture("COMPLETED"))
        assert as_response(whole) == whole
    as_response = policy("checkout.sale").as_response
    assert as_response is not None
    assert as_response({"id": "pay_1", "action_id": "act_1", "response_code": "10000"}) is None


def test_checkouts_events_of_an_action_are_not_those_of_the_payment():
    data = {"id": "pay_1", "action_id": "act_2", "metadata": {"paywitness": "op_1"}}
    (approved,) = told("checkout", {"id": "evt_1", "type": "payment_approved", "data": data})
    (declined,) = told("checkout", {"id": "evt_2", "type": "payment_capture_declined", "data": data})
    assert [value for _, value in approved.match_values] == ["act_2", "op_1", "pay_1"]
    assert [value for _, value in declined.match_values] == ["act_2"]
    assert read_event("checkout.capture", declined.payload) is ResultClass.FAILED
    assert read_event("checkout.sale", approved.payload) is ResultClass.SUCCEEDED


def test_mollies_event_is_read_with_and_without_its_object():
    event = {"id": "event_1", "type": "payment.paid", "entityId": "tr_1"}
    (notice,) = told("mollie", event)
    assert notice.match_values == ((MatchKey.REFERENCE, "tr_1"),)
    assert read_event("mollie.sale", event) is ResultClass.SUCCEEDED
    entity = {"id": "tr_1", "status": "paid", "amount": {"value": "9.00", "currency": "EUR"}}
    assert (
        read_event("mollie.sale", {**event, "_embedded": {"entity": entity}}, ExpectedPayment(TEN))
        is ResultClass.UNKNOWN_OUTCOME
    )


def test_squares_event_shows_the_same_object_as_its_answer():
    payment = {"id": "p1", "status": "COMPLETED", "reference_id": "B1"}
    event = {"event_id": "e1", "data": {"type": "payment", "id": "p1", "object": {"payment": payment}}}
    (notice,) = told("square", event)
    assert notice.match_values == ((MatchKey.REFERENCE, "p1"), (MatchKey.INTENT, "B1"))
    assert read_event("square.sale", event) is ResultClass.SUCCEEDED
    assert told("square", {"event_id": "e2", "data": {"type": "payout", "id": "po_1"}}) == []
