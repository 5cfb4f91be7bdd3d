"""Fallbacks between files: the other route must exist, speak the same API, and guard the same purchases."""

from __future__ import annotations

from pathlib import Path

import pytest

from paywitness.core.errors import PolicyError
from paywitness.core.fallback import Fallback, FallbackCause
from paywitness.policy.book import compile_content, load_directory
from tests.policy.bad_files import problems_of
from tests.policy.texts import changed, load, operation

PAYING = "merchant: shop\n" + changed("    kind: sale\n", "    kind: sale\n    intent: order\n")
FIRST = "fallback: [{to: other, when: [not_sent, absent], after: 2}]\n" + PAYING
OTHER = "hosts: [other.test]\nsame_credentials_as: bank\n" + changed("provider: bank", "provider: other", PAYING)


def problems_in(directory: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)
    try:
        load_directory(directory)
    except PolicyError as error:
        return [problem.replace(f"{directory}/", "") for problem in error.problems]
    return []


def test_a_fallback_to_a_route_that_speaks_the_same_api_loads(tmp_path):
    assert problems_in(tmp_path, a=FIRST, b=OTHER) == []
    book = load_directory(tmp_path)
    causes = frozenset({FallbackCause.NOT_SENT, FallbackCause.ABSENT})
    assert operation(book.providers["bank"], "pay").fallbacks == (Fallback("other", causes, 2),)
    assert operation(book.providers["other"], "pay").fallbacks == ()


def test_a_fallback_needs_its_provider(tmp_path):
    assert problems_in(tmp_path, a=FIRST) == [
        "a.yaml:1:17: fallback[0].to: found 'other', allowed: a provider of this directory"
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("merchant: shop", "merchant: mall", "of the merchant 'mall', allowed: one of 'shop'"),
        ("merchant: shop\n", "", "of the merchant '', allowed: one of 'shop'"),
        ("  pay:\n", "  buy:\n", "which has no operation 'pay', allowed: a provider that speaks the same API"),
        ("POST /v1/payments", "POST /v2/payments", "whose 'pay' does not match POST /v1/payments, allowed"),
        ("kind: sale", "kind: authorization", "whose 'pay' is another kind or body, allowed"),
        ("provider: other", "body: form\nprovider: other", "whose 'pay' is another kind or body, allowed"),
        ("intent: order", "intent: basket", "whose 'pay' has another 'intent', allowed: order, as here"),
    ],
)
def test_a_fallback_that_does_not_fit_is_told(tmp_path, old, new, said):
    (problem,) = problems_in(tmp_path, a=FIRST, b=changed(old, new, OTHER))
    assert problem.startswith("a.yaml:1:17: fallback[0].to: found 'other', ")
    assert said in problem


def test_a_fallback_needs_a_merchant(tmp_path):
    without = "merchant: shop\n"
    (problem,) = problems_in(tmp_path, a=changed(without, "", FIRST), b=changed(without, "", OTHER))
    assert problem.endswith("without 'merchant' in this file, it is required: the purchases of both must be one scope")


def test_a_wider_route_of_the_other_will_do(tmp_path):
    assert problems_in(tmp_path, a=FIRST, b=changed("POST /v1/payments", '"POST /v1/{kind}"', OTHER)) == []


def test_a_chain_ends(tmp_path):
    third = "fallback: [{to: bank, when: [not_sent]}]\n" + changed("other.test", "third.test", OTHER)
    third = changed("provider: other", "provider: third", third)
    chained = "fallback: [{to: third, when: [not_sent]}]\n" + OTHER
    problems = problems_in(tmp_path, a=FIRST, b=chained, c=third)
    assert [problem.split(", ")[1] for problem in problems] == [
        "whose own fallback leads back to 'bank'",
        "whose own fallback leads back to 'other'",
        "whose own fallback leads back to 'third'",
    ]
    assert problems_in(tmp_path, c=changed("fallback: [{to: bank, when: [not_sent]}]\n", "", third)) == []


def test_a_kept_revision_loads_without_the_other_file():
    provider = load(FIRST)
    assert load(provider.content) == provider


def test_what_acts_on_a_thing_of_the_provider_does_not_fall_back():
    confirm = (
        "  confirm: {kind: sale, match: 'POST /v1/payments/{payment}/confirm', target: path:payment, answer: payment}\n"
    )
    provider = load(changed("answers:\n", confirm + "answers:\n", FIRST))
    assert operation(provider, "confirm").fallbacks == ()


def test_a_paying_operation_that_falls_back_is_guarded_by_its_intent():
    (problem,) = problems_of(changed("    intent: order\n", "", FIRST))
    assert "operations.pay.intent: found nothing, it is required if 'fallback' is given" in problem


def test_a_fallback_on_absent_needs_somebody_to_ask():
    ask = '    ask:\n      - {needs: reference, request: "GET /v1/payments/{reference}", answer: payment}\n'
    (problem,) = problems_of(changed(ask, "", FIRST))
    assert problem.endswith("'absent', which needs an operation with 'ask': nobody could say that it is absent")


def warnings_of(text: str) -> list[str]:
    return [line for line in compile_content(text.encode(), "bank.yaml").warnings if "fallback" in line]


def test_absence_that_is_shown_after_every_caller_has_left_is_warned_of_with_its_numbers():
    [warning] = warnings_of(FIRST)
    assert "fallback[0].when: found 'absent', which can never act in 'pay': absence is shown after " in warning
    assert "of settle" in warning
    assert warning.endswith("callers that do not ask for longer wait 20s (timeouts.deadline)")


def test_absence_that_a_caller_can_wait_for_is_no_warning():
    settle = next(line for line in FIRST.splitlines() if "settle:" in line)
    patient = changed("deadline: 20s", "deadline: 10m", FIRST)
    assert warnings_of(changed(settle, "resolve: {settle: 40s}", patient)) == []


REJECTING = changed("classify:\n", "classify:\n  - {status: 400, as: validation_error, fallback: true}\n", FIRST)


def test_rejections_fall_back_where_a_row_says_so():
    provider = load(changed("when: [not_sent, absent]", "when: [rejected]", REJECTING))
    [fallback] = operation(provider, "pay").fallbacks
    assert fallback.when == {FallbackCause.REJECTED}
    assert operation(provider, "pay").classify.rows[0].fallback


def test_a_row_that_falls_back_without_a_route_that_takes_it_is_warned_of():
    assert any("no 'fallback' lists 'rejected'" in line for line in warnings_of(REJECTING))


def test_a_row_that_is_only_watched_lets_nothing_fall_back():
    watched = changed("fallback: true}", "fallback: true, observe: true}", REJECTING)
    (problem,) = problems_of(changed("when: [not_sent, absent]", "when: [rejected]", watched))
    assert "fallback[0].when: found 'rejected', which needs a row" in problem


def test_a_provider_stands_once_among_the_fallbacks():
    text = changed("after: 2}]", "after: 2}, {to: other, when: [rate_limited]}]", FIRST)
    (problem,) = problems_of(text)
    assert problem.endswith("fallback[1].to: found 'other' again, allowed: each provider once")


# --- credentials


MIRROR = "same_credentials_as: bank\n"
OWN = "credentials: {header: {Authorization: 'env:OTHER_KEY'}}\n"


def test_m8_n17_a_route_without_credentials_is_no_fallback(tmp_path):
    """It would be sent the secret of the first route."""
    (problem,) = problems_in(tmp_path, a=FIRST, b=changed(MIRROR, "", OTHER))
    assert problem == (
        "a.yaml:1:17: fallback[0].to: found 'other', whose file has no 'credentials', so it would be sent those of "
        "'bank', allowed: a provider with 'credentials' of its own, or, in the file of 'other', "
        "'same_credentials_as: bank' if it is a mirror that takes the same"
    )


def test_n17_a_route_with_credentials_of_its_own_or_a_mirror_is_one(tmp_path):
    assert problems_in(tmp_path, a=FIRST, b=changed(MIRROR, OWN, OTHER)) == []
    assert problems_in(tmp_path, a=FIRST, b=OTHER) == []
    assert load_directory(tmp_path).providers["other"].same_credentials_as == "bank"


def test_n17_a_mirror_of_somebody_else_is_none(tmp_path):
    (problem,) = problems_in(tmp_path, a=FIRST, b=changed(MIRROR, "same_credentials_as: third\n", OTHER))
    assert "'same_credentials_as: bank' if it is a mirror" in problem


def test_n17_mirrors_of_one_provider_are_mirrors_of_each_other(tmp_path):
    third = changed("provider: other", "provider: third", changed("other.test", "third.test", OTHER))
    chained = "fallback: [{to: third, when: [not_sent]}]\n" + OTHER
    assert problems_in(tmp_path, a=FIRST, b=chained, c=third) == []
    # The route between has an account of its own, and its secret must not reach the mirror of the first.
    (problem,) = problems_in(tmp_path, b=changed(MIRROR, OWN, chained))
    assert "so it would be sent those of 'other'" in problem


def test_n17_two_that_name_each_other_are_mirrors(tmp_path):
    assert problems_in(tmp_path, a="same_credentials_as: other\n" + FIRST, b=OTHER) == []


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("same_credentials_as: bank\n", "found 'bank', which is this provider, allowed: another one"),
        (
            "same_credentials_as: other\n" + OWN,
            "found 'other' beside 'credentials', allowed: one of both: a mirror takes those of the other route",
        ),
    ],
)
def test_n17_a_mirror_that_contradicts_itself_is_told(added, said):
    (problem,) = problems_of(added + PAYING)
    assert problem.endswith(f"1:22: same_credentials_as: {said}")
