"""`ask` and `cancel` as the values that the engine asks and cancels by."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from paywitness.core.classify import ExpectedPayment, classify
from paywitness.core.errors import PolicyError
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.inquiry import Inquiry, filled_body, read_inquiry
from paywitness.core.operation import FindingKind, Operation
from paywitness.core.policy import Policy
from paywitness.core.result import ResultClass
from paywitness.core.template import TemplateValues
from paywitness.policy.check import describe_doubt
from paywitness.tools.policy_diff.facts import operation_facts
from tests.policy.bad_files import problems_of
from tests.policy.texts import MINIMAL, an_operation, changed, load, operation

SEARCH = """\
      - request: GET /v1/payments/search
        query: {query: "metadata['paywitness']:'{operation_id}'", order: "{body:order.id}"}
        at: "data[?metadata.paywitness == '{operation_id}']"
        more: has_more
        answer: payment
        lag: 1m
        misses: 2
answers:
"""
TEXT = "stamp: body:metadata.paywitness\n" + changed("answers:\n", SEARCH)
PAY = operation(load(TEXT), "pay")
BY_REFERENCE, BY_SEARCH = PAY.inquiries


def values(sent: Operation, tree: object = None) -> TemplateValues:
    return TemplateValues(sent, {}, {"order": {"id": "A/1"}} if tree is None else tree)


def seen(inquiry: Inquiry, body: object, sent: Operation | None = None, policy: Policy = PAY) -> FindingKind:
    evidence = Evidence(NetworkPhase.COMPLETE, 1, None, Response(200, b"", (), json.dumps(body).encode()), "", 0.1)
    filled = values(sent or an_operation())
    return read_inquiry(inquiry, evidence, policy.classify, ExpectedPayment(), filled).finding.kind


def test_inquiries_keep_their_order_names_and_pace():
    assert [inquiry.name for inquiry in PAY.inquiries] == ["ask[0]", "ask[1]"]
    assert (BY_REFERENCE.needs_reference, BY_REFERENCE.lag_s, BY_REFERENCE.misses) == (True, 5.0, 3)
    assert (BY_SEARCH.needs_reference, BY_SEARCH.lag_s, BY_SEARCH.misses) == (False, 60.0, 2)
    assert [row.name for row in BY_SEARCH.answers] == ["answers.payment[0]", "answers.payment[1]"]


def test_an_inquiry_is_filled_from_the_operation_and_encoded():
    assert BY_REFERENCE.target(values(an_operation())) is None
    assert BY_REFERENCE.target(values(an_operation(reference="p/1"))) == "/v1/payments/p%2F1"
    query = "query=metadata%5B%27paywitness%27%5D%3A%27op_1%27&order=A%2F1"
    assert BY_SEARCH.target(values(an_operation())) == f"/v1/payments/search?{query}"
    assert BY_SEARCH.target(values(an_operation(), {})) is None


def test_an_object_is_found_among_others_by_the_operations_own_id():
    ours = {"status": "paid", "metadata": {"paywitness": "op_1"}}
    other = {"status": "paid", "metadata": {"paywitness": "op_2"}}
    assert seen(BY_SEARCH, {"data": [other, ours]}) is FindingKind.HIT
    assert seen(BY_SEARCH, {"data": [other]}) is FindingKind.MISSED
    assert seen(BY_SEARCH, {"data": [other], "has_more": True}) is FindingKind.FAILED
    assert seen(BY_SEARCH, {"data": [ours, ours]}) is FindingKind.FAILED


def test_what_cannot_be_looked_for_is_neither_asked_nor_missed():
    unquotable = an_operation(stamp="a\\")
    assert BY_SEARCH.target(values(unquotable)) is None
    assert seen(BY_SEARCH, {"data": []}, unquotable) is FindingKind.FAILED


BY_NAME = 'request: "GET /v1/payments/{reference}", answer: payment'


def belonging(belongs: str) -> str:
    return changed(BY_NAME, f"{BY_NAME}, belongs: {belongs}")


def test_an_inquiry_says_where_its_object_shows_what_was_asked_for():
    (inquiry,) = operation(load(belonging("{reference: id, key: request_id}")), "pay").inquiries
    assert (str(inquiry.belongs.reference), str(inquiry.belongs.key)) == ("id", "request_id")
    ours = an_operation(reference="p1")
    assert seen(inquiry, {"status": "paid", "id": "p1"}, ours) is FindingKind.HIT
    assert seen(inquiry, {"status": "paid", "id": "p1", "request_id": "provider-1"}, ours) is FindingKind.HIT
    assert seen(inquiry, {"status": "paid", "id": "p2"}, ours) is FindingKind.FAILED
    assert seen(inquiry, {"status": "refused", "id": "p2", "reason": "no_funds"}, ours) is FindingKind.FAILED
    assert seen(inquiry, {"status": "paid", "id": "p1", "request_id": "provider-2"}, ours) is FindingKind.FAILED


def test_what_the_operation_says_of_its_objects_holds_for_every_inquiry_that_can_hold_it():
    text = changed("    reference: id\n", "    reference: id\n    belongs: {reference: id, key: k}\n", TEXT)
    by_reference, by_search = operation(load(text), "pay").inquiries
    assert (str(by_reference.belongs.reference), str(by_reference.belongs.key)) == ("id", "k")
    assert (by_search.belongs.reference, str(by_search.belongs.key)) == (None, "k")  # it names no reference
    own = changed(BY_NAME, f"{BY_NAME}, belongs: {{reference: own_id}}", text)
    assert str(operation(load(own), "pay").inquiries[0].belongs.reference) == "own_id"
    assert str(operation(load(own), "pay").inquiries[0].belongs.key) == "k"


REFUND = """\
  refund:
    kind: refund
    match: "POST /v1/payments/{payment}/refunds"
    target: path:payment
    payment: [body:charge, path:payment]
    answer: payment
    ask: [{request: "GET /v1/payments/%s", answer: payment, belongs: {reference: id}}]
answers:
"""


@pytest.mark.parametrize(("named", "ours"), [("{path:payment}", "p7"), ("{body:charge}", "c7")])
def test_an_inquiry_about_what_is_acted_on_finds_that(named, ours):
    policy = operation(load(changed("answers:\n", REFUND % named)), "refund")
    (inquiry,) = policy.inquiries
    filled = TemplateValues(an_operation(reference="r1"), {"payment": "p7"}, {"charge": "c7"})
    assert inquiry.belongs.hold({"id": ours}, filled)
    assert not inquiry.belongs.hold({"id": "r1"}, filled)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            belonging("{}"),
            "18:95: operations.pay.ask[0].belongs: found nothing in it, allowed: at least one of "
            "reference, key, stamp, denied_at",
        ),
        (
            belonging("{name: id}"),
            "18:96: operations.pay.ask[0].belongs.name: found an unknown key, allowed here: reference, key, stamp, "
            "denied_at",
        ),
        (
            belonging('{reference: "a ="}'),
            "18:107: operations.pay.ask[0].belongs.reference: this is not a JMESPath expression, at character 3: "
            "Unknown token '=' (equality is '==')",
        ),
        (
            changed("  window: 24h\n  errors_under_key: replayed\n", "", belonging("{key: k}")).replace(
                "send_as: header:Idempotency-Key", "take_from: [header:Idempotency-Key]"
            ),
            "16:101: operations.pay.ask[0].belongs.key: found without 'idempotency.send_as': "
            "the provider never saw the key",
        ),
        (
            changed("        misses: 2\n", "        misses: 2\n        belongs: {reference: id}\n", TEXT),
            "27:30: operations.pay.ask[1].belongs.reference: found in an inquiry that names neither {reference} nor "
            "what the operation acts on ('target', 'payment'): there is nothing to hold it against",
        ),
        (
            changed("    ask:\n      - {needs: reference, " + BY_NAME + "}\n", "    belongs: {key: k}\n"),
            "17:14: operations.pay.belongs: found without 'ask': no inquiry finds an object",
        ),
    ],
)
def test_a_slip_in_belongs_is_told_with_its_place(text, said):
    assert f"bank.yaml:{said}" in problems_of(text)


def test_check_tells_by_what_an_object_is_known_as_ours():
    policy = operation(load(belonging("{reference: id, key: k}")), "pay")
    assert ", ours by the reference at id, ours by the key at k)" in describe_doubt(policy)
    assert "belongs.reference id, belongs.key k" in operation_facts(policy)["ask[0]"]


def test_a_file_read_again_gives_equal_inquiries():
    assert load(TEXT) == load(TEXT)
    assert operation(load(load(TEXT).content), "pay").inquiries == PAY.inquiries


CANCEL = """\
    cancel:
      needs: reference
      request: "POST /v1/payments/{reference}/void"
      body: {reason: given_up, details: {order: "{body:order.id}"}}
      read: [{when: "status == 'voided'", as: cancelled}]
"""


def test_a_cancel_knows_its_request_and_what_shows_that_it_worked():
    cancel = operation(load(changed("    reference: id\n", "    reference: id\n" + CANCEL)), "pay").cancel
    assert cancel is not None
    assert not cancel.when_schedule_ran_out
    assert cancel.target(values(an_operation())) is None
    given_up = values(an_operation(reference="p1"))
    assert (cancel.method, cancel.target(given_up)) == ("POST", "/v1/payments/p1/void")
    assert [(place, text.filled(given_up)) for place, text in cancel.body] == [
        (("reason",), "given_up"),
        (("details", "order"), "A/1"),
    ]
    assert [row.result_class for row in cancel.read] == [ResultClass.CANCELLED]


def test_a_cancel_may_follow_the_schedule():
    text = changed("    reference: id\n", "    reference: id\n" + CANCEL + "      when: schedule_ran_out\n")
    cancel = operation(load(text), "pay").cancel
    assert cancel is not None
    assert cancel.when_schedule_ran_out


def test_an_operation_without_either_has_neither():
    ask = '    ask:\n      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}\n'
    policy = operation(load(changed(ask, "", MINIMAL)), "pay")
    assert (policy.inquiries, policy.cancel, policy.contract.supports_inquiry) == ((), None, False)


def test_a_list_may_begin_shortly_before_it_was_sent():
    text = changed("answers:\n", SEARCH.replace('order: "{body:order.id}"', 'from: "{since}"'))
    by_search = operation(load("stamp: body:metadata.paywitness\n" + text), "pay").inquiries[1]
    target = by_search.target(values(an_operation(first_sent_at=1_800_000_000.9)))
    assert target is not None
    assert target.endswith("&from=2027-01-14T08%3A00%3A00Z")  # a day earlier: the provider's clock is not known
    known = replace(values(an_operation(first_sent_at=1_800_000_000.9)), sent_at=1_800_000_060.9)
    assert (by_search.target(known) or "").endswith("&from=2027-01-15T07%3A56%3A00Z")  # five minutes: clocks drift
    assert by_search.target(values(an_operation())) is None  # nothing was sent yet


LOOK_UP = """\
      - request: POST /v1/payments/search
        body: {search: {order: {is: "{body:order.id}"}, "@version": "2"}}
        at: "data[?metadata.paywitness == '{operation_id}']"
        answer: payment
answers:
"""


def test_a_look_up_may_be_a_post_with_a_body_of_its_own():
    inquiry = operation(load("stamp: body:metadata.paywitness\n" + changed("answers:\n", LOOK_UP)), "pay").inquiries[1]
    assert (inquiry.method, inquiry.target(values(an_operation()))) == ("POST", "/v1/payments/search")
    tree = {"search": {"order": {"is": "A/1"}, "@version": "2"}}
    assert filled_body(inquiry.body, values(an_operation())) == tree
    assert inquiry.target(values(an_operation(), {"order": {}})) is None


def test_a_look_up_at_the_address_of_payments_is_told_from_them_by_its_body():
    text = changed('request: "GET /v1/payments/{reference}"', 'request: POST /v1/payments, body: {find: "{reference}"}')
    told_apart = text.replace("match: POST /v1/payments\n", "match: POST /v1/payments\n    where: pay\n")
    assert operation(load(told_apart), "pay").inquiries[0].method == "POST"
    with pytest.raises(PolicyError, match="a call of 'pay'"):
        load(told_apart.replace("where: pay", "where: find"))


def test_a_get_has_no_body_and_a_post_has_one():
    text = "stamp: body:metadata.paywitness\n" + changed("answers:\n", LOOK_UP.replace("POST", "GET"))
    with pytest.raises(PolicyError, match=r"ask\[1\].request: found GET with 'body'"):
        load(text)
    with pytest.raises(PolicyError, match=r"ask\[0\].request: found POST without 'body'"):
        load(changed("GET /v1/payments/{reference}", "POST /v1/payments/{reference}"))


def test_answers_to_a_policy_of_xml_are_read_as_xml():
    policy = operation(load("body: xml\n" + MINIMAL), "pay")
    body = b"<payment><status>paid</status></payment>"
    rules = replace(policy.classify, answers=policy.inquiries[0].answers)
    found = Evidence(NetworkPhase.COMPLETE, 1, None, Response(200, b"", (), body), "", 0.1)
    assert classify(found, rules).rule == "unrecognised_2xx"  # read, and its root is no part of the rows
    cut = Evidence(NetworkPhase.COMPLETE, 1, None, Response(200, b"", (), body[:-1]), "", 0.1)
    assert classify(cut, rules).rule == "unreadable_2xx"


def test_m26_the_page_of_a_reference_shows_that_reference_also_if_the_policy_does_not_say_where():
    ours = an_operation(reference="p1")
    assert seen(BY_REFERENCE, {"status": "paid", "id": "p1"}, ours) is FindingKind.HIT
    assert seen(BY_REFERENCE, {"status": "paid", "id": "p2"}, ours) is FindingKind.FAILED
    assert seen(BY_REFERENCE, {"status": "refused", "id": "p2", "reason": "no_funds"}, ours) is FindingKind.FAILED
    assert seen(BY_REFERENCE, {"status": "paid"}, ours) is FindingKind.HIT  # what is not shown cannot contradict
    other = changed(BY_NAME, f"{BY_NAME}, belongs: {{key: k}}", TEXT)
    assert operation(load(other), "pay").inquiries[0].belongs.reference is None


def test_an_object_that_shows_another_stamp_is_another_operations():
    fits = "    reference: id\n    fits: {stamp: metadata.paywitness}\n"
    policy = operation(load(changed("    reference: id\n", fits, TEXT)), "pay")
    shown = {"status": "paid", "id": "p1", "metadata": {"paywitness": "op_2"}}
    assert seen(policy.inquiries[0], shown, an_operation(reference="p1", stamp="op_1"), policy) is FindingKind.FAILED
    assert seen(policy.inquiries[0], shown, an_operation(reference="p1", stamp="op_2"), policy) is FindingKind.HIT
    unstamped = an_operation(reference="p1", stamp="op_1", unstamped=True)
    assert seen(policy.inquiries[0], shown, unstamped, policy) is FindingKind.HIT


SHARED = {
    'request: "GET /v1/payments/{reference}", answer': False,
    'request: "GET /v1/payments/{provider_key}", answer': False,
    'request: "GET /v1/payments", query: {id: "{operation_id}"}, answer': False,
    'request: "GET /v1/payments", query: {order: "{body:order.id}"}, answer': True,
    'request: "GET /v1/payments/{client_key}", answer': True,
}


@pytest.mark.parametrize(("asked", "shared"), SHARED.items())
def test_what_other_operations_find_too_is_shared(asked, shared):
    text = changed('request: "GET /v1/payments/{reference}", answer', asked, TEXT)
    assert operation(load(text), "pay").inquiries[0].shared is shared


def test_the_reference_of_a_payment_that_is_confirmed_is_shared_by_all_who_confirm_it():
    confirm = TEXT.replace(
        "match: POST /v1/payments\n", 'match: "POST /v1/payments/{id}/confirm"\n    target: path:id\n'
    )
    assert operation(load(confirm), "pay").inquiries[0].shared
