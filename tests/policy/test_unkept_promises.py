"""`policy check` warns of what a file says and cannot come to pass."""

from __future__ import annotations

import pytest

from paywitness.core.operation import State
from paywitness.core.result import ResultClass
from paywitness.policy.book import compile_content
from paywitness.policy.check import describe_doubt
from paywitness.policy.explain import FailureScenario, explain
from tests.policy.texts import MINIMAL, changed, load, operation

KEPT = changed("    reference: id\n", "    intent: order\n    reference: id\n    fits: {amount: amount, unit: minor}\n")
NOT_STORED = changed("errors_under_key: replayed", "errors_under_key: not_stored", KEPT)
ASK = '      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}\n'
EVENTS = "webhook: {scheme: hmac_sha256, secrets: [env:S], event_id: id, answer: payment, find: [%s]}\n"


def warnings(text: str) -> list[str]:
    """Each warning without its place."""
    return [line.split(": ", 1)[1] for line in compile_content(text.encode(), "bank.yaml").warnings]


def test_a_policy_that_can_do_what_it_says_has_no_warning():
    assert warnings(KEPT) == []


# --- An inquiry by a reference that nobody has


def test_u6_an_inquiry_that_needs_a_reference_nobody_has_is_warned_about():
    """`check` promised an inquiry, and for 31 hours there was no way to ask."""
    (warning,) = warnings(NOT_STORED)
    assert warning.startswith("operations.pay.ask: needs the provider's reference, which nobody has ")
    assert "'pay' could not be asked about" in warning


@pytest.mark.parametrize(
    "text",
    [
        changed("errors_under_key: replayed", "errors_under_key: reexecuted", KEPT),
        EVENTS % "{provider_key: key}, {reference: id}" + NOT_STORED,
        changed(
            ASK, ASK + '      - {request: "GET /v1/payments/by-key/{provider_key}", answer: payment}\n', NOT_STORED
        ),
        changed(ASK, "", NOT_STORED).replace("    ask:\n", ""),
    ],
    ids=[
        "a re-send fetches the answer",
        "an event brings it",
        "another inquiry does without",
        "it is not asked at all",
    ],
)
def test_it_is_not_if_somebody_can_have_the_reference_or_nobody_is_asked(text: str):
    assert warnings(text) == []


def test_events_that_are_found_by_the_reference_alone_do_not_bring_it():
    assert len(warnings(EVENTS % "{reference: id}" + NOT_STORED)) == 1


def test_an_inquiry_is_described_with_what_it_needs():
    described = describe_doubt(operation(load(MINIMAL), "pay"))
    assert "(3 misses over 5s, once a response or event has shown its reference, ours by" in described


def test_explain_says_that_nobody_can_be_asked_yet():
    policy = operation(load(NOT_STORED), "pay")
    lost = explain(policy, FailureScenario(ResultClass.NETWORK_READ_TIMEOUT))
    assert lost.state is State.UNKNOWN
    assert any(line.startswith("  but:      'ask' needs the provider's reference") for line in lost.lines)
    pending = explain(policy, FailureScenario(ResultClass.PENDING))  # its answer came, and shows the reference
    assert not any("but:" in line for line in pending.lines)


# --- A pending that never ends

PENDING = changed(
    "    - {when: \"status == 'paid'\", as: succeeded}\n",
    "    - {when: \"status == 'paid'\", as: succeeded}\n    - {when: \"status == 'open'\", as: pending}\n",
    KEPT,
)
ASKED_ELSEWHERE = changed('{reference}", answer: payment}', '{reference}", answer: asked}', PENDING)
ASKED = "  asked:\n    - {when: \"status == 'open'\", as: pending}\n"


def test_a_pending_that_no_later_look_reads_as_a_success_is_warned_about():
    text = changed("answers:\n", "answers:\n" + ASKED, ASKED_ELSEWHERE)
    (warning,) = warnings(text)
    assert warning.startswith("operations.pay.answer: reads 'pending', and no row by which ")
    assert "'pay' would stay pending" in warning


@pytest.mark.parametrize(
    "text",
    [
        PENDING,
        EVENTS % "{provider_key: key}" + changed("answers:\n", "answers:\n" + ASKED, ASKED_ELSEWHERE),
        changed(ASK, "", PENDING).replace("    ask:\n", ""),
    ],
    ids=["the inquiry reads it", "the event reads it", "nobody looks, which is said"],
)
def test_it_is_not_if_a_later_look_does(text: str):
    assert warnings(text) == []


# --- Attempts above the budget of an intent


@pytest.mark.parametrize(
    ("old", "new", "key", "possible"),
    [
        ("{attempts: 3, base: 100ms}", "{attempts: 6, base: 100ms}", "retry.default.attempts", 4),
        ("base: 100ms}\n", "base: 100ms}\n  rate_limited: {attempts: 5}\n", "retry.rate_limited.attempts", 4),
        (
            "    answer: payment\n",
            "    answer: payment\n    retry: {default: {attempts: 9}}\n",
            "operations.pay.retry",
            4,
        ),
        ("resolve:", "budget: {per_intent: 1}\nresolve:", "retry.default.attempts", 2),
    ],
)
def test_b11_attempts_above_per_intent_are_warned_about(old: str, new: str, key: str, possible: int):
    """`attempts: 6` was cut to 4 without a word."""
    (warning,) = warnings(changed(old, new, KEPT))
    assert warning.startswith(key)
    assert f"of which 'pay' can make {possible}: 'budget.per_intent' allows {possible - 1} retries" in warning


@pytest.mark.parametrize(
    "text",
    [
        changed("attempts: 3", "attempts: 4", KEPT),
        changed("attempts: 3", "attempts: 6", "budget: {per_intent: 5}\n" + KEPT),
        changed("attempts: 3", "attempts: 6", changed("    intent: order\n", "", KEPT)),
    ],
    ids=["as many as it allows", "it allows more", "no intent counts them"],
)
def test_attempts_that_can_be_made_are_not(text: str):
    assert warnings(text) == []


# --- No fits


def test_an_answer_that_is_held_against_nothing_is_warned_about_once_for_all_operations():
    second = changed("    kind: sale", "    kind: payout", MINIMAL[MINIMAL.index("  pay:") : MINIMAL.index("answers:")])
    second = second.replace("  pay:", "  send:").replace("/v1/payments", "/v1/payouts")
    (warning,) = warnings(changed("answers:\n", second + "answers:\n"))
    assert warning.startswith(
        "operations.pay.fits: found nothing in 'pay', 'send': an answer that shows another amount "
    )


@pytest.mark.parametrize("fits", ["none", "{stamp: metadata.op}"])
def test_a_policy_may_say_that_an_answer_shows_no_amount(fits: str):
    text = "stamp: body:metadata.op\n" + changed("    reference: id\n", f"    reference: id\n    fits: {fits}\n")
    assert warnings(text) == []
    assert operation(load(text), "pay").classify.fit.amount is None


def test_what_names_no_amount_has_nothing_to_compare():
    text = changed("    amount: {at: amount, unit: minor}\n", "")
    assert warnings(text) == []


# --- A rule that an earlier one hides

FIRST = "  - {status: 402, code: error.code, table: declines}\n"


def hidden(earlier: str, later: str) -> bool:
    rows = "".join(f"  - {{{row}}}\n" for row in (earlier, later))
    found = warnings(changed(FIRST, rows, KEPT))
    assert found in (
        [],
        ["classify[1]: is never reached: classify[0] above matches whatever it matches; put this one before it"],
    )
    return bool(found)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("status: 4xx, as: validation_error", "status: 402, as: issuer_hard_decline"),
        ("status: 409, as: idempotency_in_flight", "status: 409, when: error.code, as: validation_error"),
        ("when: \"error.code == 'x'\", as: validation_error", "when: \"error.code == 'x'\", as: risk_decline"),
        ("when: \"a == 'x'\", as: validation_error", "when: \"b == 'y' && a == 'x'\", as: risk_decline"),
        ("when: \"a == 'x' || b == 'y'\", as: validation_error", "when: \"a == 'x'\", as: risk_decline"),
        ("when: \"a == 'x' && b\", as: validation_error", "when: \"(a == 'x' && b) && c\", as: risk_decline"),
        ("status: 402, code: c, table: declines, otherwise: failed", "status: 402, when: c, as: risk_decline"),
        ("status: 402, code: c, table: declines", "status: 402, code: c, table: declines"),
        ("header: {Retry-Hint: no}, as: validation_error", "header: {Retry-Hint: no}, when: x, as: risk_decline"),
    ],
)
def test_a_rule_that_is_hidden_by_an_earlier_one_is_warned_about(earlier: str, later: str):
    assert hidden(earlier, later)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("status: 402, as: issuer_hard_decline", "status: 4xx, as: validation_error"),
        ("status: 409, when: error.code, as: validation_error", "status: 409, as: idempotency_in_flight"),
        ("when: \"b == 'y' && a == 'x'\", as: validation_error", "when: \"a == 'x'\", as: risk_decline"),
        ("when: \"a == 'x'\", as: validation_error", "when: \"a == 'x' || b == 'y'\", as: risk_decline"),
        ("status: 402, code: c, table: declines", "status: 402, as: risk_decline"),
        ("status: 402, code: c, table: declines", "status: 402, code: d, table: declines"),
        ("status: 402, code: c, table: declines", "status: 402, code: c, table: declines, otherwise: failed"),
        ("status: 402, as: risk_decline, observe: true", "status: 402, as: validation_error"),
        # An empty body is read only by a row that names its status, and a gateway's page by one with a header too.
        ('when: "!error", as: validation_error', 'status: 402, when: "!error", as: risk_decline'),
        ("status: 403, as: validation_error", "status: 403, header: {Server: edge}, as: rate_limited"),
    ],
)
def test_one_that_something_still_reaches_is_not(earlier: str, later: str):
    assert not hidden(earlier, later)


def test_a_hidden_row_of_an_object_is_found_too():
    paid = "    - {when: \"status == 'paid'\", as: succeeded}\n"
    (warning,) = warnings(changed(paid, paid + paid.replace("succeeded", "pending"), KEPT))
    assert warning.startswith("answers.payment[1]: is never reached: answers.payment[0] above matches")


def test_a_row_about_errors_is_not_hidden_by_a_success_that_is_read_from_a_2xx_alone():
    paid = "    - {when: \"status == 'paid'\", as: succeeded}\n"
    assert not warnings(changed(paid, paid + paid.replace("as: succeeded", "status: 409, as: already_done"), KEPT))
