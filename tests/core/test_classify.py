"""From evidence to reading and effect: the wire first, then the policy's rows, then what HTTP says; else doubt."""

from __future__ import annotations

import gzip
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from paywitness.core.bodies.tree import Encoding, Tree, value_at
from paywitness.core.classify import (
    FOREIGN_PAGE,
    SUCCESS_IN_ERROR,
    ClassifyRules,
    ExpectedPayment,
    Expression,
    ResponseMatcher,
    ResponseRule,
    classify,
    is_false,
    matches_expected,
)
from paywitness.core.evidence import Evidence, NetworkPhase, Response, WireFault
from paywitness.core.money import Money, Unit
from paywitness.core.result import (
    ADVICE,
    DEFAULT_EFFECTS,
    DENIALS,
    DOES_NOT_FIT,
    FAILURE_CLASSES,
    Classification,
    Effect,
    ResultClass,
)
from tests.core.samples import answered, response, unanswered

BEFORE_SENDING = (NetworkPhase.RESOLVING, NetworkPhase.CONNECTING, NetworkPhase.HANDSHAKING)
FROM_SENDING_ON = (NetworkPhase.SENDING, NetworkPhase.AWAITING, NetworkPhase.RECEIVING)
NO_RULES = ClassifyRules()


def at(path: str) -> Expression:
    return lambda tree: value_at(tree, path)


def equal(path: str, value: object) -> Expression:
    return lambda tree: value_at(tree, path) == value


def nothing(_: Tree) -> Tree:
    return None


def read(
    found: Response, rules: ClassifyRules = NO_RULES, asked: ExpectedPayment = ExpectedPayment()
) -> Classification:
    return classify(answered(found), rules, asked)


def rules(*rows: ResponseRule, **changes: Any) -> ClassifyRules:
    return replace(ClassifyRules(rows=rows), **changes)


def test_a_row_says_whether_its_answer_is_kept_under_the_key() -> None:
    busy = ResponseRule("busy", ResultClass.IDEMPOTENCY_IN_FLIGHT, status_codes=frozenset({409}), stored=False)
    assert not read(response(409), rules(busy)).stored
    assert read(response(503), rules(busy)).stored


def test_p28d_a_row_that_reads_the_body_speaks_of_an_empty_one_only_if_it_names_its_status() -> None:
    """P28 D: a void is answered 204 without a body. An empty page of a gateway is no success, and no decline either."""
    not_failed = ResponseRule("not failed", ResultClass.SUCCEEDED, when=lambda tree: value_at(tree, "error") is None)
    for found in (response(200), response(204), response(502), response(409)):
        assert read(found, rules(not_failed)).result_class is not ResultClass.SUCCEEDED
        assert read(found, rules(replace(not_failed, result_class=ResultClass.FAILED))).result_class not in DENIALS
    assert read(response(200, {"id": "ch_1"}), rules(not_failed)).result_class is ResultClass.SUCCEEDED
    voided = ResponseRule("voided", ResultClass.SUCCEEDED, status_codes=frozenset({204}))
    for row in (voided, replace(not_failed, status_codes=frozenset({204}))):
        assert read(response(204), rules(row)).result_class is ResultClass.SUCCEEDED
        assert read(response(502), rules(row)).result_class is not ResultClass.SUCCEEDED


def test_m11_a_copy_of_the_answer_before_it_is_lost_if_it_names_a_payment() -> None:
    paid = ResponseRule("paid", ResultClass.SUCCEEDED, status_codes=frozenset({200}))
    copy = replace(answered(response(200, {"id": "ch_1"})), repeats_previous=True)
    assert classify(copy, rules(paid, reference=at("id"))) == Classification.of(
        ResultClass.UNKNOWN_OUTCOME, "answer_of_another_call", lost=True
    )
    assert classify(copy, rules(paid)).result_class is ResultClass.SUCCEEDED  # it names nothing: calls may be alike


# --- the classes of the design


def test_every_reading_has_an_effect_and_an_advice() -> None:
    assert set(DEFAULT_EFFECTS) == set(ResultClass)
    assert set(ADVICE) == set(ResultClass)


def test_effects_are_those_of_the_design() -> None:
    none = {
        ResultClass.NETWORK_CONNECT_FAILURE,
        ResultClass.VALIDATION_ERROR,
        ResultClass.AUTHENTICATION_ERROR,
        ResultClass.RATE_LIMITED,
        ResultClass.REQUIRES_ACTION,
        ResultClass.ABSENT,
        *DENIALS,
    }
    done = {
        ResultClass.SUCCEEDED,
        ResultClass.PENDING,
        ResultClass.REVERSED,
        ResultClass.RETURNED,
        ResultClass.DISPUTED,
        ResultClass.DISPUTE_WON,
    }
    for reading, effect in DEFAULT_EFFECTS.items():
        expected = Effect.NONE if reading in none else Effect.DONE if reading in done else Effect.POSSIBLE
        assert effect is expected, reading


def test_there_are_sixteen_failure_classes() -> None:
    assert len(FAILURE_CLASSES) == 16
    assert ResultClass.SUCCEEDED not in FAILURE_CLASSES


# --- the wire


@pytest.mark.parametrize("phase", BEFORE_SENDING)
def test_what_was_not_sent_had_no_effect(phase: NetworkPhase) -> None:
    for fault in (None, *WireFault):
        found = classify(unanswered(phase, fault), NO_RULES)
        assert (found.result_class, found.effect) == (ResultClass.NETWORK_CONNECT_FAILURE, Effect.NONE), fault


@pytest.mark.parametrize("phase", FROM_SENDING_ON)
def test_what_may_have_left_without_an_answer_is_doubt(phase: NetworkPhase) -> None:
    for fault, bytes_written in product((None, *WireFault), (0, 1)):
        found = classify(unanswered(phase, fault, bytes_written), NO_RULES)
        assert found.effect is Effect.POSSIBLE, fault
        assert found.lost
        timed_out = fault in {WireFault.FIRST_BYTE_TIMEOUT, WireFault.BODY_TIMEOUT, WireFault.WRITE_TIMEOUT}
        assert found.result_class is (ResultClass.NETWORK_READ_TIMEOUT if timed_out else ResultClass.UNKNOWN_OUTCOME)


@pytest.mark.parametrize("phase", BEFORE_SENDING)
def test_a_byte_that_was_written_counts_whatever_the_phase_says(phase: NetworkPhase) -> None:
    assert classify(unanswered(phase, WireFault.RESET, bytes_written=1), NO_RULES).effect is Effect.POSSIBLE


@pytest.mark.parametrize("phase", BEFORE_SENDING)
def test_an_answer_counts_whatever_the_phase_says(phase: NetworkPhase) -> None:
    evidence = Evidence(phase, 0, None, response(200, {"status": "paid"}), "", 0.1)
    assert evidence.sent
    assert classify(evidence, NO_RULES).effect is Effect.POSSIBLE


# --- what HTTP says where no row does

WITHOUT_EFFECT = {
    **dict.fromkeys((400, 404, 405, 410, 411, 413, 414, 415, 417, 422, 431), ResultClass.VALIDATION_ERROR),
    **dict.fromkeys((401, 403, 407), ResultClass.AUTHENTICATION_ERROR),
    402: ResultClass.ISSUER_HARD_DECLINE,
    429: ResultClass.RATE_LIMITED,
}


@pytest.mark.parametrize("body", [b"{}", b"", b" \r\n"], ids=["json", "empty", "blank"])
def test_every_status_code_has_its_reading_and_only_refusals_are_without_effect(body: bytes) -> None:
    for status_code in range(100, 600):
        found = read(response(status_code, body))
        if status_code in WITHOUT_EFFECT:
            assert (found.result_class, found.effect) == (WITHOUT_EFFECT[status_code], Effect.NONE), status_code
            continue
        assert found.effect is Effect.POSSIBLE, status_code
        if status_code in {408, 504}:
            assert found.result_class is ResultClass.PROVIDER_TIMEOUT
        elif status_code >= 500:
            assert found.result_class is ResultClass.TEMPORARY_PROVIDER_ERROR
        else:
            assert found.result_class is ResultClass.UNKNOWN_OUTCOME, status_code


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"Forbidden", b'{"cut":'], ids=["html", "text", "cut"])
def test_a_page_that_is_not_in_the_apis_language_is_doubt_with_every_status_code(body: bytes) -> None:
    """P38: a gateway may write it after the provider has done its work."""
    by_status_alone = ResponseRule("row", ResultClass.ISSUER_HARD_DECLINE, status_codes=frozenset({402, 403}))
    for status_code in range(100, 600):
        found = read(response(status_code, body), rules(by_status_alone))
        assert (found.effect, found.lost) == (Effect.POSSIBLE, True), status_code
    assert read(response(403, body)).rule == FOREIGN_PAGE


def test_an_xhtml_page_in_front_of_an_xml_api_is_foreign_too() -> None:
    found = read(response(403, b"<html><body>blocked</body></html>"), rules(encoding=Encoding.XML))
    assert (found.rule, found.effect) == (FOREIGN_PAGE, Effect.POSSIBLE)
    assert read(response(403, b"<error>no</error>"), rules(encoding=Encoding.XML)).effect is Effect.NONE


def test_a_row_may_recognise_a_gateways_page_by_status_and_header() -> None:
    """P38: a WAF's block would else turn every payment into an unknown outcome."""
    blocked = ResponseRule(
        "waf", ResultClass.VALIDATION_ERROR, status_codes=frozenset({403}), headers=(("server", "cloudflare"),)
    )
    page = b"<html>Attention Required!</html>"
    found = read(Response(403, b"", ((b"Server", b"cloudflare"),), page), rules(blocked))
    assert (found.rule, found.effect) == ("waf", Effect.NONE)
    for status_code, server in ((403, b"nginx"), (404, b"cloudflare")):
        other = Response(status_code, b"", ((b"Server", server),), page)
        assert read(other, rules(blocked)).rule == FOREIGN_PAGE


@pytest.mark.parametrize("status_code", [500, 502, 503, 504])
def test_a_gateways_page_in_place_of_an_answer_is_a_lost_answer(status_code: int) -> None:
    assert read(response(status_code, b"<html>Bad Gateway</html>")).lost
    assert not read(response(status_code, {"error": "internal"})).lost


@pytest.mark.parametrize("body", [b"", b"OK", b"<html>", b'{"status": "paid"', b'{"a":1,"a":2}', b"\xff{}"])
def test_a_success_that_cannot_be_read_is_as_good_as_lost(body: bytes) -> None:
    found = read(response(200, body))
    assert (found.result_class, found.effect, found.lost) == (ResultClass.UNKNOWN_OUTCOME, Effect.POSSIBLE, True)


def test_a_success_that_no_row_recognises_is_doubt_where_money_moves() -> None:
    found = read(response(201, {"status": "strange"}))
    assert (found.result_class, found.effect, found.lost) == (ResultClass.UNKNOWN_OUTCOME, Effect.POSSIBLE, False)
    assert read(response(201, {}), rules(moves_money=False)).result_class is ResultClass.SUCCEEDED


@pytest.mark.parametrize("status_code", [200, 400, 402, 429, 500])
def test_an_answer_whose_end_nobody_saw_counts_only_if_it_can_be_read(status_code: int) -> None:
    by_status = rules(ResponseRule("classify[0]", ResultClass.VALIDATION_ERROR, status_codes=frozenset({400})))
    cut = read(response(status_code, b'{"error": {"type": "idempot', close_delimited=True), by_status)
    assert (cut.result_class, cut.effect, cut.lost) == (ResultClass.UNKNOWN_OUTCOME, Effect.POSSIBLE, True)
    whole = read(response(status_code, {"error": 1}, close_delimited=True), by_status)
    assert whole == read(response(status_code, {"error": 1}), by_status)


# --- rows


def test_a_body_may_turn_a_success_into_a_decline_and_a_conflict_into_a_success() -> None:
    rows = rules(
        ResponseRule("classify[0]", ResultClass.SUCCEEDED, when=equal("error.reason", "already_created")),
        ResponseRule("classify[1]", ResultClass.ISSUER_SOFT_DECLINE, when=equal("status", "refused")),
    )
    assert read(response(200, {"status": "refused"}), rows).result_class is ResultClass.ISSUER_SOFT_DECLINE
    assert read(response(409, {"error": {"reason": "already_created"}}), rows).result_class is ResultClass.SUCCEEDED


def test_rows_come_before_answers_and_answers_before_status_codes() -> None:
    row = ResponseRule("classify[0]", ResultClass.RISK_DECLINE, status_codes=frozenset({402}))
    answer = ResponseRule("answers.charge[0]", ResultClass.ISSUER_SOFT_DECLINE, when=equal("status", "failed"))
    both = rules(row, answers=(answer,))
    body = {"status": "failed"}
    assert read(response(402, body), both).rule == "classify[0]"
    assert read(response(400, body), both).rule == "answers.charge[0]"
    assert read(response(400, {}), both).rule == "http_400"


def test_the_first_row_that_matches_wins() -> None:
    rows = [ResponseRule(f"classify[{n}]", reading, when=at("error")) for n, reading in enumerate(ResultClass)]
    assert read(response(400, {"error": 1}), rules(*rows)).rule == "classify[0]"
    assert read(response(400, {"error": 1}), rules(*rows[::-1])).rule == f"classify[{len(rows) - 1}]"


@pytest.mark.parametrize("place", ["when", "code"])
def test_an_expression_that_finds_nothing_does_not_match(place: str) -> None:
    broken: dict[str, Any] = {place: nothing, "table": {"None": ResultClass.SUCCEEDED}}
    found = read(response(400, {}), rules(ResponseRule("classify[0]", ResultClass.SUCCEEDED, **broken)))
    assert found.rule == "http_400"


def test_a_reference_or_amount_that_cannot_be_read_is_an_absent_one() -> None:
    paid = ResponseRule("answers.charge[0]", ResultClass.SUCCEEDED, when=equal("status", "paid"))
    broken = rules(paid, reference=nothing, fit=ResponseMatcher(amount=nothing, currency=nothing))
    found = read(response(200, {"status": "paid"}), broken, ExpectedPayment(Money(100, "EUR")))
    assert (found.result_class, found.reference) == (ResultClass.SUCCEEDED, None)


@pytest.mark.parametrize(
    ("code", "otherwise", "expected"),
    [
        ("stolen_card", None, ResultClass.ISSUER_HARD_DECLINE),
        (51, None, ResultClass.ISSUER_SOFT_DECLINE),
        ("51", None, ResultClass.ISSUER_SOFT_DECLINE),
        ("new_code", None, ResultClass.VALIDATION_ERROR),
        ("new_code", ResultClass.RISK_DECLINE, ResultClass.RISK_DECLINE),
        (None, None, ResultClass.VALIDATION_ERROR),
        (None, ResultClass.RISK_DECLINE, ResultClass.RISK_DECLINE),
        (["stolen_card"], None, ResultClass.VALIDATION_ERROR),
    ],
)
def test_a_code_is_looked_up_in_its_table(code: object, otherwise: ResultClass | None, expected: ResultClass) -> None:
    table = {"stolen_card": ResultClass.ISSUER_HARD_DECLINE, "51": ResultClass.ISSUER_SOFT_DECLINE}
    row = ResponseRule("classify[0]", code=at("code"), table=table, otherwise=otherwise)
    assert read(response(400, {"code": code}), rules(row)).result_class is expected


def test_a_row_may_set_the_effect_of_its_reading() -> None:
    row = ResponseRule("classify[0]", ResultClass.TEMPORARY_PROVIDER_ERROR, Effect.NONE, status_codes=frozenset({503}))
    found = read(response(503, {}), rules(row))
    assert (found.result_class, found.effect) == (ResultClass.TEMPORARY_PROVIDER_ERROR, Effect.NONE)


@pytest.mark.parametrize(
    ("headers", "matches"),
    [
        ((("Retry-Hint", "no"),), True),
        ((("RETRY-HINT", " No "),), True),
        ((("Retry-Hint", "nope"),), False),
        ((("Retry-Hint", "yes"), ("Retry-Hint", "no")), False),
        ((), False),
    ],
)
def test_a_row_may_test_a_header(headers: tuple[tuple[str, str], ...], *, matches: bool) -> None:
    row = ResponseRule("classify[0]", ResultClass.RISK_DECLINE, headers=(("retry-hint", "no"),))
    assert (read(response(400, {}, *headers), rules(row)).result_class is ResultClass.RISK_DECLINE) == matches


def test_every_condition_of_a_row_must_hold() -> None:
    row = ResponseRule(
        "classify[0]",
        ResultClass.RISK_DECLINE,
        status_codes=frozenset({400}),
        headers=(("x", "1"),),
        when=equal("a", 1),
    )
    assert read(response(400, {"a": 1}, ("X", "1")), rules(row)).rule == "classify[0]"
    for other in (response(401, {"a": 1}, ("X", "1")), response(400, {"a": 2}, ("X", "1")), response(400, {"a": 1})):
        assert read(other, rules(row)).rule != "classify[0]"


@pytest.mark.parametrize("value", [0, 1, "x", [0], True, {"a": None}])
def test_zero_is_true_as_in_jmespath(value: object) -> None:
    assert not is_false(value)


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_only_nothing_is_false(value: object) -> None:
    assert is_false(value)


def test_a_compressed_answer_is_read_and_a_damaged_one_is_lost() -> None:
    paid = rules(ResponseRule("answers.charge[0]", ResultClass.SUCCEEDED, when=equal("status", "paid")))
    packed = gzip.compress(b'{"status": "paid"}')
    assert read(response(200, packed, ("Content-Encoding", "gzip")), paid).result_class is ResultClass.SUCCEEDED
    for body, coding in ((packed[:-9], "gzip"), (packed, "br"), (packed, "identity"), (b"", "gzip")):
        assert read(response(200, body, ("Content-Encoding", coding)), paid).lost


# --- whether the answer is of this request

EUR_10 = ExpectedPayment(Money(1000, "EUR"))


@pytest.mark.parametrize(
    ("shown", "unit", "fitting"),
    [
        ({"amount": 1000, "currency": "eur"}, Unit.MINOR, True),
        ({"amount": "1000", "currency": "EUR"}, Unit.MINOR, True),
        ({"amount": "10.00", "currency": "EUR"}, Unit.MAJOR, True),
        ({"amount": 10, "currency": "EUR"}, Unit.MAJOR, True),
        ({"amount": 10.0}, Unit.MAJOR, True),
        ({"currency": "EUR"}, Unit.MINOR, True),
        ({}, Unit.MINOR, True),
        ({"amount": 1001, "currency": "EUR"}, Unit.MINOR, False),
        ({"amount": 1000, "currency": "USD"}, Unit.MINOR, False),
        ({"amount": 1000, "currency": "EUR"}, Unit.MAJOR, False),
        ({"amount": "10.00"}, Unit.MINOR, False),
        ({"amount": "10.001"}, Unit.MAJOR, False),
        ({"amount": True}, Unit.MINOR, False),
        ({"amount": "ten"}, Unit.MAJOR, False),
        ({"amount": [1000]}, Unit.MINOR, True),
        ({"amount": ["4.00", "6.00"], "currency": ["EUR", "eur"]}, Unit.MAJOR, True),
        ({"amount": [], "currency": []}, Unit.MINOR, True),
        ({"amount": ["4.00", "6.01"]}, Unit.MAJOR, False),
        ({"amount": [400, 600], "currency": ["EUR", "USD"]}, Unit.MINOR, False),
        ({"amount": [[1000]]}, Unit.MINOR, False),
        ({"currency": 978}, Unit.MINOR, False),
    ],
)
def test_an_answer_that_shows_another_amount_or_currency_is_doubt(
    shown: dict[str, object], unit: Unit, *, fitting: bool
) -> None:
    fit = ResponseMatcher(at("amount"), unit, at("currency"))
    assert matches_expected(fit, shown, EUR_10) == fitting
    for reading in (ResultClass.SUCCEEDED, ResultClass.PENDING, ResultClass.REQUIRES_ACTION, ResultClass.RISK_DECLINE):
        known = rules(ResponseRule("answers.charge[0]", reading, when=equal("status", "known")), fit=fit)
        found = read(response(200, {**shown, "status": "known"}), known, EUR_10)
        if fitting:
            assert found.result_class is reading
        else:
            assert (found.result_class, found.effect, found.rule) == (
                ResultClass.UNKNOWN_OUTCOME,
                Effect.POSSIBLE,
                DOES_NOT_FIT,
            )


@pytest.mark.parametrize(
    ("shown", "money"),
    [
        ({"amount": 999}, Money(999, "EUR")),
        ({"amount": 999, "currency": "usd"}, Money(999, "USD")),
        ({"amount": "nine", "currency": "usd"}, None),
        ({"currency": "usd"}, None),
        ({"amount": [500, 499]}, Money(999, "EUR")),
    ],
)
def test_what_does_not_fit_says_which_amount_it_shows(shown: dict[str, object], money: Money | None) -> None:
    fit = ResponseMatcher(at("amount"), Unit.MINOR, at("currency"))
    found = read(response(200, shown), rules(fit=fit), EUR_10)
    assert (found.rule, found.shown_money) == (DOES_NOT_FIT, money)


def test_a_strange_success_that_does_not_fit_says_so_too() -> None:
    fit = ResponseMatcher(at("amount"), Unit.MINOR, at("currency"))
    assert read(response(200, {"amount": 1}), rules(fit=fit), EUR_10).rule == DOES_NOT_FIT


def test_what_was_turned_away_need_not_fit() -> None:
    fit = ResponseMatcher(at("amount"), Unit.MINOR, at("currency"))
    found = read(response(400, {"amount": "must be a number"}), rules(fit=fit), EUR_10)
    assert found.result_class is ResultClass.VALIDATION_ERROR


def test_without_an_amount_asked_for_nothing_can_contradict() -> None:
    assert matches_expected(
        ResponseMatcher(at("amount"), Unit.MINOR, at("currency")), {"amount": 1, "currency": "USD"}, ExpectedPayment()
    )


def test_an_answer_that_carries_another_stamp_is_somebody_elses() -> None:
    fit = ResponseMatcher(stamp=at("metadata.paywitness"))
    assert matches_expected(fit, {"metadata": {"paywitness": "op_1"}}, ExpectedPayment(stamp="op_1"))
    assert not matches_expected(fit, {"metadata": {"paywitness": "op_2"}}, ExpectedPayment(stamp="op_1"))
    assert matches_expected(fit, {}, ExpectedPayment(stamp="op_1"))
    assert matches_expected(fit, {"metadata": {"paywitness": "op_2"}}, ExpectedPayment())


def test_zero_decimal_currencies_are_compared_in_their_own_unit() -> None:
    fit = ResponseMatcher(at("amount"), Unit.MAJOR)
    assert matches_expected(fit, {"amount": "1000"}, ExpectedPayment(Money(1000, "JPY")))
    assert matches_expected(fit, {"amount": "1.234"}, ExpectedPayment(Money(1234, "KWD")))


# --- the reference


@pytest.mark.parametrize(
    "reading", [ResultClass.SUCCEEDED, ResultClass.PENDING, ResultClass.REQUIRES_ACTION, ResultClass.ALREADY_DONE]
)
def test_an_answer_about_a_payment_names_it(reading: ResultClass) -> None:
    known = rules(ResponseRule("classify[0]", reading, when=at("status")), reference=at("id"))
    assert read(response(200, {"status": 1, "id": "ch_1"}), known).reference == "ch_1"


@pytest.mark.parametrize("status_code", [400, 402, 409, 429, 500, 503])
def test_an_error_that_no_row_knows_names_no_payment(status_code: int) -> None:
    assert read(response(status_code, {"id": "err_1"}), rules(reference=at("id"))).reference is None


def test_a_strange_success_names_what_can_be_asked_for() -> None:
    assert read(response(200, {"id": 17}), rules(reference=at("id"))).reference == "17"


@pytest.mark.parametrize("shown", [None, "", True, {}, [], 1.5, "a\nb", "x" * 256, "\ud800"])
def test_what_cannot_be_kept_or_asked_for_is_no_reference(shown: object) -> None:
    found = classify(answered(response(200, {"id": shown})), rules(reference=at("id")))
    assert found.reference is None


@pytest.mark.parametrize("status_code", [200, 201, 400, 402, 404, 429, 500])
def test_an_answer_over_a_bound_is_lost_whatever_its_status_says(status_code: int) -> None:
    """S2: what it says is not known, so an effect is possible."""
    packed = gzip.compress(b'{"id": "ch_1", "status": "failed", "x": [' + b"[]," * 2_000_000 + b"0]}")
    plain = b'{"id": "ch_1", "x": [' + b"[]," * 200_000 + b"0]}"
    rules = ClassifyRules(
        (ResponseRule("declined", ResultClass.ISSUER_HARD_DECLINE, status_codes=frozenset({402, 200})),)
    )
    for found in (
        response(status_code, packed, ("Content-Encoding", "gzip")),
        response(status_code, plain),
    ):
        told = read(found, rules)
        assert (told.result_class, told.effect, told.rule) == (
            ResultClass.UNKNOWN_OUTCOME,
            Effect.POSSIBLE,
            "answer_over_bound",
        )


PAID = ResponseRule("answers.charge[0]", ResultClass.SUCCEEDED, when=equal("status", "paid"))
SAME = ResponseRule(
    "answers.charge[1]", ResultClass.SUCCEEDED, when=lambda tree: value_at(tree, "a") == value_at(tree, "b")
)


@pytest.mark.parametrize("body", [b"", b" ", b"{}", b"null", b"[]", b'""'])
@pytest.mark.parametrize("status_code", [200, 201, 400, 402, 500])
def test_a_success_row_reads_nothing_from_a_body_that_shows_nothing(body, status_code):
    by_object = read(response(status_code, body), ClassifyRules(answers=(SAME,)))
    by_response = read(response(status_code, body), ClassifyRules(rows=(replace(SAME, name="classify[0]"),)))
    by_header = replace(PAID, when=None, headers=(("x-paid", "yes"),))
    assert Effect.DONE not in {by_object.effect, by_response.effect}
    assert (
        read(response(status_code, body, ("X-Paid", "yes")), ClassifyRules(answers=(by_header,))).effect
        is not Effect.DONE
    )


def test_a_success_row_that_names_its_status_may_read_an_empty_body():
    accepted = replace(PAID, when=None, status_codes=frozenset({204}))
    assert read(response(204, b""), ClassifyRules(answers=(accepted,))).result_class is ResultClass.SUCCEEDED


@pytest.mark.parametrize("status_code", [301, 400, 402, 404, 409, 422, 429, 500, 502])
def test_an_error_that_looks_like_a_success_is_neither_success_nor_refusal(status_code):
    found = read(
        response(status_code, b'{"status": "paid", "id": "ch_1"}'), ClassifyRules(answers=(PAID,), reference=at("id"))
    )
    assert found.effect is Effect.POSSIBLE
    if 400 <= status_code < 500 and status_code != 409:
        assert (found.rule, found.reference) == (SUCCESS_IN_ERROR, "ch_1")


def test_a_later_row_may_still_read_an_error_that_looks_like_a_success():
    declined = ResponseRule("answers.charge[1]", ResultClass.ISSUER_HARD_DECLINE, when=equal("id", "ch_1"))
    found = read(response(402, b'{"status": "paid", "id": "ch_1"}'), ClassifyRules(answers=(PAID, declined)))
    assert found.result_class is ResultClass.ISSUER_HARD_DECLINE


def test_a_row_of_an_object_reads_a_success_from_the_error_status_that_it_names():
    replayed = replace(PAID, status_codes=frozenset({409}))
    assert (
        read(response(409, b'{"status": "paid"}'), ClassifyRules(answers=(replayed,))).result_class
        is ResultClass.SUCCEEDED
    )


def test_a_row_of_classify_reads_responses_and_so_may_read_a_success_from_an_error():
    row = replace(PAID, name="classify[0]")
    assert read(response(409, b'{"status": "paid"}'), ClassifyRules(rows=(row,))).result_class is ResultClass.SUCCEEDED
