"""Inquiries: what counts as a hit, what as a miss, and what it takes to believe that something is absent."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.bodies.tree import Tree
from paywitness.core.classify import ClassifyRules, ExpectedPayment, ResponseMatcher, ResponseRule
from paywitness.core.evidence import Evidence, NetworkPhase, WireFault
from paywitness.core.inquiry import (
    AbsenceProof,
    BelongsFields,
    FoundObject,
    Inquiry,
    after_miss,
    is_settled,
    next_inquiry_at,
    read_inquiry,
)
from paywitness.core.money import Money
from paywitness.core.operation import FindingKind, State
from paywitness.core.provider_time import ProviderTime
from paywitness.core.result import ResultClass
from paywitness.core.template import Placeholder, Template, TemplateValues, in_path
from tests.core.samples import answered, operation, response

ASKED = ExpectedPayment(Money(1099, "EUR"), "op_01")
NOW = 10_000.0


def field(name: str) -> Any:
    def read(tree: Tree) -> Tree:
        return tree.get(name) if isinstance(tree, dict) else None

    return read


def is_status(*wanted: str) -> Any:
    return lambda tree: isinstance(tree, dict) and tree.get("status") in wanted


ROWS = (
    ResponseRule("answers.charge[0]", ResultClass.SUCCEEDED, when=is_status("succeeded")),
    ResponseRule("answers.charge[1]", ResultClass.PENDING, when=is_status("processing")),
    ResponseRule("answers.charge[2]", ResultClass.FAILED, when=is_status("failed")),
    ResponseRule("answers.charge[3]", ResultClass.ABSENT, when=is_status("authorized")),
    ResponseRule("answers.charge[4]", ResultClass.TEMPORARY_PROVIDER_ERROR, when=is_status("odd")),
)
RULES = ClassifyRules(
    answers=ROWS,
    reference=field("id"),
    fit=ResponseMatcher(amount=field("amount"), currency=field("currency"), stamp=field("stamp")),
)
BY_LIST = Inquiry("ask[1]", Template(("/v1/charges",)), ROWS, at=lambda values: field("data"), more=field("has_more"))
BY_REFERENCE = Inquiry("ask[0]", Template(("/v1/charges/", Placeholder("reference"))), ROWS, needs_reference=True)
CHARGE = {"id": "ch_1", "status": "succeeded", "amount": 1099, "currency": "eur", "stamp": "op_01"}


def asked(found: Evidence, inquiry: Inquiry = BY_LIST) -> FoundObject:
    return read_inquiry(inquiry, found, RULES, ASKED, TemplateValues(operation(), {}))


def page(*charges: object, has_more: bool = False) -> Evidence:
    return answered(response(200, {"data": list(charges), "has_more": has_more}))


def test_a_hit_shows_its_reading_its_reference_and_the_object() -> None:
    seen = asked(page(CHARGE))
    assert seen.finding.kind is FindingKind.HIT
    assert seen.finding.classification is not None
    assert seen.finding.classification.result_class is ResultClass.SUCCEEDED
    assert seen.finding.classification.reference == "ch_1"
    assert seen.provider_object == CHARGE


@pytest.mark.parametrize("changes", [{"amount": 1100}, {"currency": "usd"}, {"stamp": "op_02"}, {"amount": "garbage"}])
def test_what_does_not_fit_is_somebody_elses_and_neither_hit_nor_miss(changes: dict[str, object]) -> None:
    assert asked(page({**CHARGE, **changes})).finding.kind is FindingKind.NOT_OURS


# --- whose object it is

NAMED = BelongsFields(reference=field("id"), key=field("key"), asked=Template((Placeholder("reference"),)))
OF_A_TARGET = BelongsFields(reference=field("id"), asked=Template((Placeholder("path", "charge"),)))


def looked_up(found: object, belongs: BelongsFields = NAMED, **known: Any) -> FoundObject:
    """What an inquiry about ch_1, made under the key k-1, finds."""
    sent = operation(**{"reference": "ch_1", "provider_key": "k-1", **known})
    inquiry = replace(BY_REFERENCE, belongs=belongs)
    return read_inquiry(inquiry, answered(response(200, found)), RULES, ASKED, TemplateValues(sent, {"charge": "ch_7"}))


@pytest.mark.parametrize("changes", [{}, {"key": "k-1"}, {"id": None}, {"key": ["k-2"]}, {"id": True}])
def test_an_object_belongs_unless_it_shows_another_name(changes: dict[str, object]) -> None:
    assert looked_up({**CHARGE, **changes}).finding.kind is FindingKind.HIT


@pytest.mark.parametrize("changes", [{"id": "ch_2"}, {"key": "k-2"}, {"id": 1}, {"status": "failed", "id": "ch_2"}])
def test_another_object_is_a_failed_inquiry_and_says_nothing_of_ours(changes: dict[str, object]) -> None:
    seen = looked_up({**CHARGE, **changes})
    assert seen.finding.kind is FindingKind.FAILED
    assert seen.finding.classification is None
    assert seen.provider_object is None


def test_another_object_that_reads_as_absent_is_no_miss() -> None:
    assert looked_up({**CHARGE, "status": "authorized"}).finding.kind is FindingKind.MISSED
    assert looked_up({**CHARGE, "status": "authorized", "id": "ch_2"}).finding.kind is FindingKind.FAILED


def test_what_we_do_not_know_is_not_compared() -> None:
    assert looked_up({**CHARGE, "key": "k-2"}, provider_key=None).finding.kind is FindingKind.HIT
    assert looked_up({**CHARGE, "id": "ch_2"}, BelongsFields(reference=field("id"))).finding.kind is FindingKind.HIT
    assert looked_up({**CHARGE, "id": "ch_2"}, reference=None).finding.kind is FindingKind.HIT


def test_a_target_that_was_asked_for_counts_like_a_reference() -> None:
    assert looked_up({**CHARGE, "id": "ch_7"}, OF_A_TARGET).finding.kind is FindingKind.HIT
    assert looked_up({**CHARGE, "id": "ch_1"}, OF_A_TARGET).finding.kind is FindingKind.FAILED


def test_of_a_list_only_the_objects_that_belong_count() -> None:
    by_list = replace(BY_LIST, belongs=NAMED)
    other = {**CHARGE, "id": "ch_2"}

    def listed(*charges: object) -> FoundObject:
        sent = operation(reference="ch_1", provider_key="k-1")
        return read_inquiry(by_list, page(*charges), RULES, ASKED, TemplateValues(sent, {}))

    assert listed(other, CHARGE).finding.kind is FindingKind.HIT
    assert listed(other, CHARGE, other).provider_object == CHARGE
    assert listed(other, other).finding.kind is FindingKind.FAILED
    assert listed(other).finding.kind is FindingKind.FAILED
    assert listed().finding.kind is FindingKind.MISSED


def test_nothing_found_is_a_miss_but_not_on_one_page_of_several() -> None:
    assert asked(page()).finding.kind is FindingKind.MISSED
    assert asked(page(has_more=True)).finding.kind is FindingKind.FAILED


def test_an_empty_answer_is_no_miss() -> None:
    """A cache or gateway that answers 200 or 204 without a body has not looked anything up."""
    for status_code in (200, 204):
        for inquiry in (BY_LIST, BY_REFERENCE):
            assert asked(answered(response(status_code, b" ")), inquiry).finding.kind is FindingKind.FAILED


@pytest.mark.parametrize("changes", [{}, {"stamp": "op_02"}, {"status": "processing"}, {"status": "failed"}])
def test_a_payment_in_the_place_of_a_list_is_no_miss(changes: dict[str, object]) -> None:
    """An answer that was mixed up with another's: three of those must not make a payment absent."""
    assert asked(answered(response(200, {**CHARGE, **changes}))).finding.kind is FindingKind.FAILED
    assert asked(answered(response(200, {}))).finding.kind is FindingKind.MISSED  # some leave an empty list out


def test_an_empty_object_in_the_place_of_the_one_that_was_asked_for_is_no_miss() -> None:
    """A page that names one object answers 404 if it is not there. `{}` is a gateway's or a cache's."""
    for inquiry in (BY_KEY, BY_REFERENCE, SHARED):
        assert asked(answered(response(200, {})), inquiry).finding.kind is FindingKind.FAILED


DENIED = {**CHARGE, "id": "ch_2", "status": "failed"}
STRANGE = {**CHARGE, "id": "ch_3", "status": "new word"}
FOREIGN = {**CHARGE, "id": "ch_4", "stamp": "op_02"}


@pytest.mark.parametrize(
    ("found", "reading"),
    [
        ((CHARGE, DENIED), ResultClass.SUCCEEDED),  # a try that failed was executed again, and paid
        ((DENIED, CHARGE, DENIED), ResultClass.SUCCEEDED),
        ((DENIED, DENIED), ResultClass.FAILED),
        ((FOREIGN, CHARGE), ResultClass.SUCCEEDED),
        ((FOREIGN, DENIED), ResultClass.FAILED),
    ],
)
def test_of_several_the_one_that_was_paid_is_the_truth_or_that_all_were_denied(
    found: tuple[dict[str, object], ...], reading: ResultClass
) -> None:
    seen = asked(page(*found))
    assert seen.finding.kind is FindingKind.HIT
    assert seen.finding.classification is not None
    assert seen.finding.classification.result_class is reading


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ((CHARGE, {**CHARGE, "id": "ch_5"}), FindingKind.FAILED),  # two were paid: a person's
        ((CHARGE, STRANGE), FindingKind.FAILED),
        ((DENIED, STRANGE), FindingKind.FAILED),
        ((FOREIGN, FOREIGN), FindingKind.NOT_OURS),
        (({**CHARGE, "status": "processing"}, CHARGE), FindingKind.FAILED),
    ],
)
def test_of_several_anything_that_could_be_two_payments_is_a_persons(
    found: tuple[dict[str, object], ...], what: FindingKind
) -> None:
    assert asked(page(*found)).finding.kind is what


def test_a_page_of_several_can_say_that_it_was_paid_but_not_that_it_was_not() -> None:
    assert asked(page(CHARGE, has_more=True)).finding.kind is FindingKind.HIT
    assert asked(page(DENIED, has_more=True)).finding.kind is FindingKind.FAILED
    assert asked(page(DENIED, DENIED, has_more=True)).finding.kind is FindingKind.FAILED
    assert asked(page({**CHARGE, "status": "authorized"}, has_more=True)).finding.kind is FindingKind.FAILED


def test_not_found_counts_only_where_the_provider_itself_says_so() -> None:
    assert by_key(404, {"error": "missing"}) is FindingKind.MISSED
    assert by_key(404, b"") is FindingKind.MISSED
    assert by_key(404, b"<html>no such page</html>") is FindingKind.FAILED


BY_KEY = Inquiry("ask[2]", Template(("/v1/charges/", Placeholder("provider_key"))), ROWS)


def by_key(status_code: int, body: object) -> FindingKind:
    values = TemplateValues(operation(), {})
    return read_inquiry(BY_KEY, answered(response(status_code, body)), RULES, ASKED, values).finding.kind


def test_m29_a_search_that_is_not_there_missed_nothing() -> None:
    """Stripe's search is not available in every country. A search that finds nothing answers 200."""
    assert asked(answered(response(404, {"error": "missing"}))).finding.kind is FindingKind.FAILED
    assert asked(answered(response(200, {"data": []}))).finding.kind is FindingKind.MISSED


def test_m13_p37_a_reference_that_the_provider_gave_us_is_never_missed() -> None:
    known = TemplateValues(operation(reference="ch_1"), {})
    seen = read_inquiry(BY_REFERENCE, answered(response(404, {"error": "missing"})), RULES, ASKED, known)
    assert (seen.finding.kind, seen.gone) == (FindingKind.FAILED, True)


# --- by whose clock


def dated(found: object, date: str | None) -> Evidence:
    headers = ((b"Date", date.encode()),) if date is not None else ()
    return answered(replace(response(200, found), headers=headers))


SENT_AT = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
SINCE = Inquiry(
    "ask[0]",
    Template(("/v1/charges",)),
    ROWS,
    at=lambda values: field("data"),
    query=(("from", Template((Placeholder("since"),))),),
)


def listed(since_ahead_s: float | None, date: str | None, age_max_s: float = 10.0) -> FindingKind:
    """Nothing is in the list, which was asked for ten seconds after the send."""
    sent_at = SENT_AT + since_ahead_s if since_ahead_s is not None else None
    values = TemplateValues(operation(first_sent_at=SENT_AT), {}, sent_at=sent_at)
    found = dated({"data": []}, date)
    time = ProviderTime.of(found.response, age_max_s, 10.0, 0.1)
    return read_inquiry(SINCE, found, RULES, ASKED, values, time).finding.kind


@pytest.mark.parametrize(
    ("since_ahead_s", "date", "found"),
    [
        (0.0, "Fri, 15 Jan 2027 08:00:10 GMT", FindingKind.MISSED),  # both clocks agree
        (0.0, "Fri, 15 Jan 2027 07:50:10 GMT", FindingKind.FAILED),  # the provider's is ten minutes behind
        (-600.0, "Fri, 15 Jan 2027 07:50:10 GMT", FindingKind.MISSED),  # which was known when the list was asked for
        (0.0, None, FindingKind.FAILED),  # it shows no clock this time
        (None, None, FindingKind.MISSED),  # nor ever: the list reaches back for a day
        (None, "Fri, 15 Jan 2027 07:50:10 GMT", FindingKind.MISSED),
        (None, "Wed, 13 Jan 2027 07:50:10 GMT", FindingKind.FAILED),  # ours is two days ahead
    ],
)
def test_m23_p14_a_list_missed_only_what_it_reaches_back_to_by_the_providers_clock(since_ahead_s, date, found) -> None:
    assert listed(since_ahead_s, date) is found


@pytest.mark.parametrize(("age_max_s", "found"), [(610.0, FindingKind.FAILED), (math.inf, FindingKind.FAILED)])
def test_a_list_does_not_reach_back_to_what_may_be_older_than_the_stores_clock_says(
    age_max_s: float, found: FindingKind
) -> None:
    """The store's clock was set back by ten minutes since; or nobody can tell how long nobody looked."""
    assert listed(0.0, "Fri, 15 Jan 2027 08:00:10 GMT", age_max_s) is found


# --- what several attempts share

SHARED = replace(BY_KEY, path=Template(("/v1/orders/", Placeholder("body", "order"))), shared=True)


def shared_denial(
    inquiry: Inquiry = SHARED,
    date: str | None = None,
    attempts: int = 1,
    age_min_s: float = 10.0,
    **shown: object,
) -> bool:
    values = TemplateValues(operation(first_sent_at=SENT_AT, provider_key="pk_1", attempts=attempts), {})
    found = dated({"status": "failed", **shown}, date)
    time = ProviderTime.of(found.response, 10.0, age_min_s, 0.5)
    seen = read_inquiry(inquiry, found, RULES, ASKED, values, time)
    assert seen.finding.kind is FindingKind.HIT
    return seen.may_be_stale


def test_m1_a_denial_of_a_shared_object_may_be_that_of_an_earlier_attempt() -> None:
    assert shared_denial()
    assert not shared_denial(BY_KEY)
    ours = replace(SHARED, belongs=BelongsFields(key=field("key")))
    assert shared_denial(ours)
    assert not shared_denial(ours, key="pk_1")
    paid = read_inquiry(SHARED, dated(CHARGE, None), RULES, ASKED, TemplateValues(operation(), {}))
    assert (paid.finding.kind, paid.may_be_stale) == (FindingKind.HIT, False)


def test_m29_an_action_of_a_shared_object_may_be_that_of_an_earlier_step() -> None:
    """The customer was asked to act for the confirm before ours, and has done so since."""
    rows = (ResponseRule("answers.charge[0]", ResultClass.REQUIRES_ACTION, when=is_status("failed")),)
    assert shared_denial(replace(SHARED, answers=rows))
    ours = replace(SHARED, answers=rows, belongs=BelongsFields(key=field("key")))
    assert not shared_denial(ours, key="pk_1")


@pytest.mark.parametrize(
    ("denied_at", "date", "attempts", "stale"),
    [
        (SENT_AT + 2, "Fri, 15 Jan 2027 08:00:10 GMT", 1, False),
        ("2027-01-15T08:00:02Z", "Fri, 15 Jan 2027 08:00:10 GMT", 1, False),
        (SENT_AT + 1, "Fri, 15 Jan 2027 08:00:10 GMT", 1, True),  # within what a Date leaves open
        (SENT_AT + 2, "Fri, 15 Jan 2027 08:01:10 GMT", 1, True),  # by the provider's clock it was sent a minute later
        (SENT_AT + 2, None, 1, True),
        (SENT_AT + 2, "Fri, 15 Jan 2027 08:00:10 GMT", 2, True),  # which attempt was it?
        (None, "Fri, 15 Jan 2027 08:00:10 GMT", 1, True),
    ],
)
def test_a_denial_that_was_made_after_our_attempt_is_ours(denied_at, date, attempts, stale) -> None:
    timed = replace(SHARED, belongs=BelongsFields(denied_at=field("at")))
    assert shared_denial(timed, date, attempts, at=denied_at) is stale


def test_a_denial_is_ours_only_if_it_came_after_the_latest_that_our_attempt_can_have_been() -> None:
    """The store's clock was set ahead since: what it calls ten seconds may have been one."""
    timed = replace(SHARED, belongs=BelongsFields(denied_at=field("at")))
    assert shared_denial(timed, "Fri, 15 Jan 2027 08:00:10 GMT", 1, 1.0, at=SENT_AT + 2)


@pytest.mark.parametrize("status_code", [301, 400, 401, 403, 409, 429, 500, 502, 503])
def test_refused_and_failed_inquiries_are_no_misses(status_code: int) -> None:
    assert asked(answered(response(status_code, {"data": []}))).finding.kind is FindingKind.FAILED


def test_no_answer_is_no_miss() -> None:
    lost = Evidence(NetworkPhase.AWAITING, 100, WireFault.FIRST_BYTE_TIMEOUT, None, "", 1.0)
    assert asked(lost).finding.kind is FindingKind.FAILED
    assert asked(answered(response(200, b'{"data": ['))).finding.kind is FindingKind.FAILED


def test_an_object_that_no_row_reads_or_that_says_nothing_is_no_hit() -> None:
    assert asked(page({**CHARGE, "status": "new word"})).finding.kind is FindingKind.FAILED
    assert asked(page({**CHARGE, "status": "odd"})).finding.kind is FindingKind.FAILED


def test_an_object_may_itself_say_that_ours_never_arrived() -> None:
    assert asked(page({**CHARGE, "status": "authorized"})).finding.kind is FindingKind.MISSED


def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(json.dumps({"data": [CHARGE]}).encode())
    assert asked(answered(response(200, body, ("Content-Encoding", "gzip")))).finding.kind is FindingKind.HIT


# --- asking


def test_a_way_that_cannot_name_the_operation_is_not_asked() -> None:
    assert BY_REFERENCE.target(TemplateValues(operation(), {})) is None
    assert BY_REFERENCE.target(TemplateValues(operation(reference="ch_1"), {})) == "/v1/charges/ch_1"


@pytest.mark.parametrize(
    ("value", "encoded"), [("a/b", "a%2Fb"), ("..", "%2E%2E"), (".", "%2E"), ("ö?#", "%C3%B6%3F%23"), ("a.b", "a.b")]
)
def test_a_value_in_a_path_is_one_segment_whatever_it_holds(value: str, encoded: str) -> None:
    assert in_path(value) == encoded


def test_query_values_are_encoded() -> None:
    inquiry = Inquiry(
        "ask[0]", Template(("/v1/charges",)), ROWS, query=(("order", Template((Placeholder("client_key"),))),)
    )
    assert inquiry.target(TemplateValues(operation(client_key="a&b=c"), {})) == "/v1/charges?order=a%26b%3Dc"


# --- absent

PROOF = AbsenceProof(misses=3, lag_s=5.0, settle_s=600.0)
IN_DOUBT = operation(state=State.UNKNOWN, doubt=frozenset({1}), attempts=1, no_bytes_after_at=NOW)


def test_a_miss_before_all_has_settled_counts_nothing() -> None:
    after, absent = after_miss(IN_DOUBT, PROOF, NOW + 599.9)
    assert (after.misses, absent) == (0, False)


def test_a_miss_while_an_attempt_is_under_way_counts_nothing() -> None:
    after, absent = after_miss(IN_DOUBT.changed(attempt_under_way=True), PROOF, NOW + 10_000)
    assert (after.misses, absent) == (0, False)


def test_absent_takes_as_many_misses_as_the_policy_says_spread_over_the_lag() -> None:
    at = NOW + 600.0
    operation_, absent = after_miss(IN_DOUBT, PROOF, at)
    assert not absent
    operation_, absent = after_miss(operation_, PROOF, at + 2.0)
    assert not absent
    early, absent = after_miss(operation_, PROOF, at + 4.9)
    assert (early.misses, absent) == (3, False)  # enough of them, but too close together
    operation_, absent = after_miss(operation_, PROOF, at + 5.0)
    assert (operation_.misses, absent) == (3, True)


def test_one_miss_is_never_enough_where_the_look_up_lags() -> None:
    _, absent = after_miss(IN_DOUBT, AbsenceProof(misses=1, lag_s=5.0, settle_s=0.0), NOW + 1)
    assert not absent


def test_the_strictest_way_counts() -> None:
    assert AbsenceProof.of(
        (BY_LIST, Inquiry("x", Template(("/",)), ROWS, lag_s=60.0, misses=2)), 600.0
    ) == AbsenceProof(3, 60.0, 600.0)


# --- when to look again

SCHEDULE = (2.0, 10.0, 3600.0)


def test_the_schedule_is_followed_and_runs_out() -> None:
    assert next_inquiry_at(IN_DOUBT, SCHEDULE, NOW, 1.0) == NOW + 2.0
    assert next_inquiry_at(IN_DOUBT.changed(checks_done=2), SCHEDULE, NOW, 1.0) == NOW + 3600.0
    assert next_inquiry_at(IN_DOUBT.changed(checks_done=3), SCHEDULE, NOW, 1.0) is None


def test_after_a_miss_the_look_that_can_count_does_not_wait_for_the_schedule() -> None:
    found = next_inquiry_at(IN_DOUBT.changed(checks_done=2), SCHEDULE, NOW + 1, 1.0, proof=PROOF)
    assert found == NOW + 600.0


def test_the_proof_of_absence_needs_none_of_the_schedule() -> None:
    at = NOW + 601.0
    found = next_inquiry_at(IN_DOUBT.changed(checks_done=3, misses=1, first_miss_at=at), SCHEDULE, at, 1.0, proof=PROOF)
    assert found == at + 2.5


def test_settled_asks_when_the_last_byte_could_have_left() -> None:
    assert not is_settled(IN_DOUBT, 600.0, NOW + 599)
    assert is_settled(IN_DOUBT, 600.0, NOW + 600)
    assert not is_settled(IN_DOUBT.changed(no_bytes_after_at=None, updated_at=NOW + 50), 600.0, NOW + 600)


@pytest.mark.parametrize("body", [{}, {"data": None}, {"data": {}}, {"error": "try again"}, [], None])
def test_an_answer_without_the_list_that_is_always_sent_is_a_failed_inquiry(body: object) -> None:
    always = replace(BY_LIST, always_lists=field("data"))
    assert asked(answered(response(200, body))).finding.kind is FindingKind.MISSED
    assert asked(answered(response(200, body)), always).finding.kind is FindingKind.FAILED


def test_an_empty_list_that_is_always_sent_is_a_miss_and_a_full_one_is_read() -> None:
    always = replace(BY_LIST, always_lists=field("data"))
    assert asked(page(), always).finding.kind is FindingKind.MISSED
    assert asked(page(CHARGE), always).finding.kind is FindingKind.HIT


def test_a_success_row_that_looks_at_the_status_alone_reads_no_object() -> None:
    by_status = ResponseRule("answers.charge[0]", ResultClass.SUCCEEDED, status_codes=frozenset({200}))
    seen = asked(page({"id": "ch_1", "status": "odd"}), replace(BY_LIST, answers=(by_status,)))
    assert seen.finding.kind is FindingKind.FAILED


@pytest.mark.parametrize("body", [{}, [], None, ""])
def test_a_page_that_shows_nothing_is_no_miss(body: object) -> None:
    by_key = Inquiry("ask[0]", Template(("/v1/charges/", Placeholder("provider_key"))), ROWS)
    named = TemplateValues(operation(reference="ch_1"), {})
    for inquiry in (by_key, BY_REFERENCE, replace(BY_REFERENCE, at=lambda values: field("charge"))):
        seen = read_inquiry(inquiry, answered(response(200, body)), RULES, ASKED, named)
        assert seen.finding.kind is FindingKind.FAILED
