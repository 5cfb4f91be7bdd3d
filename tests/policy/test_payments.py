"""What a policy says of the payment behind an operation: every form that is taken, and every slip with its place."""

from __future__ import annotations

import json

import pytest

from paywitness.core.money import Money, Unit
from paywitness.core.payment_rules import (
    BalanceFields,
    IncrementMeaning,
    LimitMode,
    Overcapture,
    PartialCaptures,
    PaymentRules,
)
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind
from paywitness.core.result import ResultClass
from paywitness.policy.book import compile_content
from paywitness.policy.check import describe_payment, describe_policy
from paywitness.policy.explain import FailureScenario, explain
from paywitness.policy.identity_rules import identity_changes
from paywitness.policy.shipped_policies import shipped_directory
from paywitness.tools.policy_diff.facts import operation_facts
from tests.policy.bad_files import problems_of
from tests.policy.texts import MINIMAL, changed, load, operation

ON_THE_PATH = FieldRef(FieldKind.PATH, "payment")
FOLLOW_UPS = ("capture", "increment", "void", "refund", "reversal")


def text_of(kind: str, *lines: str, target: bool = True, file: str = "") -> str:
    """The minimal file with a second operation, `act`, of this kind."""
    named = "    target: path:payment\n" if target else ""
    more = "".join(f"    {line}\n" for line in lines)
    act = (
        f'  act:\n    kind: {kind}\n    match: "POST /v1/payments/{{payment}}/act"\n    answer: payment\n{named}{more}'
    )
    return file + changed("answers:\n", act + "answers:\n")


def act(kind: str, *lines: str, target: bool = True, file: str = "") -> Policy:
    return operation(load(text_of(kind, *lines, target=target, file=file)), "act")


def rules(kind: str, *lines: str, target: bool = True, file: str = "") -> PaymentRules:
    return act(kind, *lines, target=target, file=file).payment


def test_a_policy_that_says_nothing_of_its_payment_knows_nothing_of_it() -> None:
    found = operation(load(MINIMAL), "pay").payment
    assert found == PaymentRules()
    assert (found.limits, found.captures, found.final, found.partial) == (LimitMode.WARN, None, None, None)
    assert found.balance == BalanceFields()


def test_what_may_be_captured_above_the_authorised_amount_is_a_share_with_bounds() -> None:
    found = rules("authorization", "overcapture: {share: 15%, at_most: [75.00 USD, 9000 JPY]}").overcapture
    assert found == Overcapture(1500, (Money(7500, "USD"), Money(9000, "JPY")))
    assert rules("sale", "captures: manual", "overcapture: {share: 12.5%}").overcapture == Overcapture(1250)
    assert str(found) == "15%, at most 75.00 USD, at most 9000 JPY"


@pytest.mark.parametrize(
    ("kind", "line", "problem"),
    [
        ("capture", "overcapture: {share: 15%}", "allowed: in one of kind authorization or sale"),
        ("sale", "overcapture: {share: 0%}", "overcapture.share: found 0%, which allows nothing"),
        ("sale", "overcapture: {share: 115}", "a percentage from 0% to 100%"),
        ("sale", "overcapture: {share: 1%, at_most: [1 USD, 2 USD]}", "overcapture.at_most: found USD a second time"),
        ("sale", "overcapture: {at_most: 1 USD}", "share"),
    ],
)
def test_an_overcapture_that_cannot_be_meant_is_refused(kind: str, line: str, problem: str) -> None:
    assert any(problem in found for found in problems_of(text_of(kind, line)))


# --- which payment


@pytest.mark.parametrize("kind", [*FOLLOW_UPS, "sale", "authorization", "none"])
def test_the_target_names_the_payment_unless_the_policy_says_otherwise(kind: str) -> None:
    assert rules(kind).acts_on == (ON_THE_PATH,)
    assert rules(kind, "payment: body:order").acts_on == (FieldRef(FieldKind.BODY, "order"),)
    assert rules(kind, target=False).acts_on == ()


def test_the_target_of_a_payout_is_no_payment() -> None:
    assert act("payout").target == ON_THE_PATH
    assert rules("payout").acts_on == ()


def test_a_payment_may_be_named_in_several_places() -> None:
    found = rules("refund", "payment: [body:payment_intent, header:X-Charge, path:payment]", target=False)
    assert [str(place) for place in found.acts_on] == ["body:payment_intent", "header:X-Charge", "path:payment"]


def test_where_the_payment_is_named_is_no_part_of_an_identity() -> None:
    plain = load(text_of("refund"))
    told = load(text_of("refund", "payment: [body:charge]", "also_known_as: charge", "limits: enforce"))
    assert identity_changes(plain, told) == []


def test_further_names_are_one_expression_or_several() -> None:
    assert [str(name) for name in rules("sale", "also_known_as: latest_charge").also_known_as] == ["latest_charge"]
    several = rules("payout", 'also_known_as: [transfer, "links[0].id"]').also_known_as
    assert [str(name) for name in several] == ["transfer", "links[0].id"]


# --- its numbers


@pytest.mark.parametrize("kind", ["sale", "authorization"])
def test_a_success_captures_does_not_or_shows_whether_it_did(kind: str) -> None:
    assert rules(kind, "captures: automatic").captures is True
    assert rules(kind, "captures: manual").captures is False
    assert str(rules(kind, "captures: \"capture_method == 'automatic'\"").captures) == "capture_method == 'automatic'"
    assert str(rules(kind, "captures: captured").captures) == "captured"


def test_a_balance_is_read_field_by_field() -> None:
    found = rules(
        "capture",
        "balance: {authorised: a, captured: b, capturable: c, refunded: d, disputed: e, currency: f, unit: major}",
    ).balance
    shown = (found.authorised, found.captured, found.capturable, found.refunded, found.disputed, found.currency)
    assert [str(place) for place in shown] == ["a", "b", "c", "d", "e", "f"]
    assert found.unit is Unit.MAJOR
    part = rules("sale", "balance: {refunded: amount_refunded, unit: minor}").balance
    assert (str(part.refunded), part.captured, part.unit) == ("amount_refunded", None, Unit.MINOR)


@pytest.mark.parametrize("mode", LimitMode)
def test_limits_are_the_operations_else_the_providers_else_they_warn(mode: LimitMode) -> None:
    assert rules("refund").limits is LimitMode.WARN
    assert rules("refund", f"limits: {mode}").limits is mode
    assert rules("refund", file=f"limits: {mode}\n").limits is mode
    assert rules("refund", f"limits: {mode}", file="limits: enforce\n").limits is mode


# --- what holds of a kind


def test_an_increment_names_a_total_or_a_difference() -> None:
    amount = "amount: {at: amount, unit: minor}"
    assert rules("increment", amount).increment_means is None
    assert rules("increment", amount, "means: total").increment_means is IncrementMeaning.TOTAL
    assert rules("increment", amount, "means: difference").increment_means is IncrementMeaning.DIFFERENCE


@pytest.mark.parametrize(("written", "final"), [("yes", True), ("true", True), ("no", False), ("false", False)])
def test_a_capture_is_final_or_not(written: str, final: bool) -> None:
    assert rules("capture", f"final: {written}").final is final


def test_the_request_may_say_whether_a_capture_is_final() -> None:
    assert str(rules("capture", "final: final_capture").final) == "final_capture"
    assert str(rules("capture", "final: \"final_capture == 'true'\"", file="body: form\n").final) == (
        "final_capture == 'true'"
    )


def test_captures_are_one_or_several() -> None:
    assert rules("capture", "partial: single").partial is PartialCaptures.SINGLE
    assert rules("capture", "partial: sequence").partial is PartialCaptures.SEQUENCE


@pytest.mark.parametrize("kind", ["sale", "authorization", "none"])
def test_an_object_may_pay_once(kind: str) -> None:
    assert rules(kind, "once_per_target: yes").once_per_target
    assert rules(kind, "once_per_target: true").once_per_target
    assert not rules(kind, "once_per_target: no").once_per_target
    assert rules(kind, "once_per_target: yes", "payment: body:order", target=False).once_per_target
    assert not rules(kind, "once_per_target: no", target=False).once_per_target


@pytest.mark.parametrize("kind", ["sale", "capture", "refund", "reversal", "payout"])
def test_a_failure_after_a_success_is_an_incident_unless_the_provider_returns(kind: str) -> None:
    assert not rules(kind).failed_is_return
    assert not rules(kind, "failed_after_success: incident").failed_is_return
    assert rules(kind, "failed_after_success: returned").failed_is_return


def test_an_intent_may_have_a_total_and_a_place_in_the_object() -> None:
    money = ("amount: {at: amount, unit: minor}", "currency: currency")
    assert str(rules("sale", *money, "intent_total: order.total").intent_total) == "order.total"
    assert str(rules("sale", "intent_at: metadata.order_id").intent_at) == "metadata.order_id"


def test_an_authorization_ages() -> None:
    found = rules("authorization", "authorization_expires: 7d", "capture_before: charges.capture_before")
    assert (found.authorization_expires_s, str(found.capture_before)) == (7 * 86400.0, "charges.capture_before")
    assert rules("sale", "captures: manual", "authorization_expires: 7d").authorization_expires_s == 7 * 86400.0
    by_answer = rules("sale", "captures: \"method == 'auto'\"", "authorization_expires: 24h")
    assert by_answer.authorization_expires_s == 86400.0


# --- slips

AMOUNT = "amount: {at: amount, unit: minor}"
PLACES = "path:PARAMETER or body:DOTTED.PATH or header:NAME"
WITH_PAYMENT = "authorization, sale, capture, increment, refund, void, reversal or none"
SLIPS = [
    (
        "payout",
        "payment: body:x",
        f"payment: found in an operation of kind payout, allowed: in one of kind {WITH_PAYMENT}",
    ),
    ("refund", "payment: charge", f"payment: found 'charge', allowed: {PLACES}"),
    ("refund", "payment: const:x", f"payment: found 'const:x', allowed: {PLACES}"),
    ("refund", "payment: path:charge", "payment: found 'path:charge', which is not in every 'match', allowed: payment"),
    ("refund", "payment: []", "payment: found an empty list, allowed: at least one value, or leave the key out"),
    (
        "sale",
        "also_known_as: {a: b}",
        "also_known_as: found a mapping, allowed: a list",
    ),
    (
        "refund",
        "captures: manual",
        "captures: found in an operation of kind refund, allowed: in one of kind authorization or sale",
    ),
    (
        "sale",
        "captures: automatc",
        "captures: found 'automatc', allowed: automatic, manual or a JMESPath expression; did you mean 'automatic'?",
    ),
    (
        "sale",
        'captures: "method = 1"',
        "captures: this is not a JMESPath expression, at character 8: Unknown token '=' (equality is '==')",
    ),
    (
        "payout",
        "balance: {refunded: a, unit: minor}",
        f"balance: found in an operation of kind payout, allowed: in one of kind {WITH_PAYMENT}",
    ),
    ("sale", "balance: {captured: a}", "balance.unit: found nothing beside 'captured', it is required: minor or major"),
    (
        "sale",
        "balance: {currency: c, unit: minor}",
        "balance: found no amount, allowed: at least one of authorised, captured, capturable, refunded, disputed",
    ),
    (
        "sale",
        "balance: {captured: a, unit: cents}",
        "balance.unit: found 'cents', allowed: minor, major",
    ),
    (
        "sale",
        "balance: {capturd: a, captured: a, unit: minor}",
        "balance.capturd: found an unknown key, allowed here: authorised, captured, capturable, refunded, disputed, "
        "currency, unit; did you mean 'captured'?",
    ),
    ("refund", "limits: strict", "limits: found 'strict', allowed: enforce, warn, off"),
    (
        "none",
        "limits: warn",
        "limits: found in an operation of kind none, allowed: in one of kind authorization, sale, capture, increment, "
        "refund, void or reversal",
    ),
    ("increment", "means: sum", "means: found 'sum', allowed: total, difference"),
    ("increment", "means: total", "means: found without 'amount', whose meaning it is"),
    (
        "capture",
        "final: maybe = 1",
        "final: this is not a JMESPath expression, at character 7: Unknown token '=' (equality is '==')",
    ),
    (
        "capture",
        "final: yess",
        "final: found 'yess', allowed: yes, no, true, false or a JMESPath expression; did you mean 'yes'?",
    ),
    ("refund", "final: yes", "final: found in an operation of kind refund, allowed: in one of kind capture"),
    ("capture", "partial: many", "partial: found 'many', allowed: single, sequence"),
    ("void", "partial: single", "partial: found in an operation of kind void, allowed: in one of kind capture"),
    ("sale", "once_per_target: maybe", "once_per_target: found 'maybe', allowed: yes or no"),
    (
        "refund",
        "once_per_target: yes",
        "once_per_target: found in an operation of kind refund, allowed: in one of kind authorization, sale or none",
    ),
    ("sale", "failed_after_success: ok", "failed_after_success: found 'ok', allowed: incident, returned"),
    (
        "void",
        "failed_after_success: returned",
        "failed_after_success: found in an operation of kind void, allowed: in one of kind sale, capture, refund, "
        "reversal or payout",
    ),
    (
        "capture",
        "intent_total: total",
        "intent_total: found in an operation of kind capture, allowed: in one of kind authorization, sale or none",
    ),
    (
        "sale",
        "intent_total: total",
        "intent_total: found without 'amount': its unit and currency are those of the amount",
    ),
    (
        "refund",
        "intent_at: a",
        "intent_at: found in an operation of kind refund, allowed: in one of kind authorization, sale or none",
    ),
    (
        "authorization",
        "authorization_expires: a week",
        "authorization_expires: found 'a week', allowed: a duration such as 300ms, 2s, 5m, 24h or 30d",
    ),
    ("authorization", "authorization_expires: 500d", "authorization_expires: found '500d', allowed: 1s to 400d"),
    (
        "capture",
        "authorization_expires: 7d",
        "authorization_expires: found in an operation of kind capture, allowed: in one of kind authorization or sale",
    ),
    (
        "sale",
        "authorization_expires: 7d",
        "authorization_expires: found in a sale without 'captures', allowed: beside 'captures: manual' or an "
        "expression",
    ),
    (
        "refund",
        "capture_before: a",
        "capture_before: found in an operation of kind refund, allowed: in one of kind authorization, sale, none or "
        "increment",
    ),
]


@pytest.mark.parametrize(("kind", "line", "said"), SLIPS, ids=[f"{kind}: {line}" for kind, line, _ in SLIPS])
def test_a_slip_is_told_with_its_place(kind: str, line: str, said: str) -> None:
    text = text_of(kind, line)
    number = text.splitlines().index(f"    {line}") + 1
    told = [problem for problem in problems_of(text) if f"operations.act.{said}" in problem]
    assert len(told) == 1, problems_of(text)
    place, _, words = told[0].partition(": ")
    assert place.startswith(f"bank.yaml:{number}:")
    assert words == f"operations.act.{said}"


@pytest.mark.parametrize("kind", [kind for kind in OperationKind if kind is not OperationKind.INCREMENT])
def test_only_an_increment_means_something(kind: OperationKind) -> None:
    (told,) = problems_of(text_of(kind, AMOUNT, "means: total"))
    found = f"found in an operation of kind {kind}, allowed: in one of kind increment"
    assert told == f"bank.yaml:25:12: operations.act.means: {found}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "once_per_target: yes",
            "once_per_target: found without 'target' or 'payment': there is no object that could pay once",
        ),
        ("intent_at: order", "intent_at: found without 'target' or 'payment': there is no object that could show it"),
    ],
)
def test_what_is_said_of_an_object_needs_one(line: str, said: str) -> None:
    (told,) = problems_of(text_of("sale", line, target=False))
    assert told.startswith("bank.yaml:23:")
    assert told.endswith(f"operations.act.{said}")


def test_what_captures_at_once_does_not_expire() -> None:
    (told,) = problems_of(text_of("authorization", "captures: automatic", "authorization_expires: 7d"))
    assert told == (
        "bank.yaml:25:28: operations.act.authorization_expires: "
        "found beside 'captures: automatic': nothing is left to expire"
    )


def test_limits_of_the_file_are_checked_though_every_operation_has_its_own() -> None:
    text = "limits: strict\n" + changed("    kind: sale\n", "    kind: sale\n    limits: off\n")
    assert problems_of(text) == ("bank.yaml:1:9: limits: found 'strict', allowed: enforce, warn, off",)


def test_a_kind_that_cannot_be_read_is_the_only_thing_told_of_it() -> None:
    keys = [problem.split(": ")[1] for problem in problems_of(text_of("refnd", "captures: manual", "partial: single"))]
    assert keys == ["operations.act.kind"]


# --- in words


FULL = (
    "also_known_as: [charge]",
    "captures: \"mode == 'auto'\"",
    "once_per_target: yes",
    "failed_after_success: returned",
    "authorization_expires: 7d",
    "capture_before: until",
    "intent_at: order",
    "balance: {captured: taken, refunded: back, unit: minor}",
    "limits: enforce",
)


def test_a_step_that_names_nothing_may_continue_a_payment() -> None:
    assert rules("sale", "continues: yes", target=False).continues
    assert not rules("sale", target=False).continues


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("", ""), True),
        (("continues: yes", ""), False),
        (("account: [body:merchantAccount]", "account: [const:main]"), False),
    ],
)
def test_names_are_kept_without_an_account_if_a_step_may_name_none(edit: tuple[str, str], expected: bool) -> None:
    text = (shipped_directory() / "adyen.yaml").read_text().replace(*edit)
    payment = next(each for each in compile_content(text.encode(), "a.yaml").provider.policies if each.kind.pays)
    assert payment.payment.continued_without_account is expected


def test_check_and_explain_describe_the_payment() -> None:
    policy = act("sale", *FULL)
    said = (
        "acts on path:payment; also known as charge; a success captures if mode == 'auto'; "
        "its object pays at most once; a failure after success is a return; "
        "its object shows the intent at order; expires after 7d; "
        "to be captured before until; shows captured at taken, refunded at back (minor); limits enforce"
    )
    assert describe_payment(policy.payment) == said
    assert f"  payment: {said}" in describe_policy(policy)
    assert f"  payment:  {said}" in explain(policy, FailureScenario(ResultClass.UNKNOWN_OUTCOME)).lines


@pytest.mark.parametrize(
    ("kind", "lines", "said"),
    [
        ("capture", ("partial: sequence", "final: no"), "captured in parts; what is left stays authorised"),
        ("capture", ("partial: single", "final: yes"), "captured once; what is left is released"),
        ("capture", ("final: last",), "what is left is released if last"),
        ("increment", (AMOUNT, "means: total"), "its amount is the new total"),
        ("increment", (AMOUNT, "means: difference"), "its amount is added"),
        ("authorization", ("captures: manual",), "a success only authorises"),
        ("sale", (AMOUNT, "currency: c", "intent_total: t"), "payments of its intent up to t"),
    ],
)
def test_each_kind_is_described_in_its_own_words(kind: str, lines: tuple[str, ...], said: str) -> None:
    assert describe_payment(rules(kind, *lines)) == f"acts on path:payment; {said}; limits warn"


def test_a_diff_shows_the_keys_as_a_policy_writes_them() -> None:
    facts = operation_facts(act("sale", *FULL))
    assert {key: facts[key] for key in ("payment", "also_known_as", "captures", "limits", "once_per_target")} == {
        "payment": "[path:payment]",
        "also_known_as": "[charge]",
        "captures": "mode == 'auto'",
        "limits": "enforce",
        "once_per_target": "yes",
    }
    assert (facts["failed_after_success"], facts["authorization_expires"]) == ("returned", "7d")
    assert (facts["balance.captured"], facts["balance.unit"]) == ("taken", "minor")
    assert (facts["capture_before"], facts["intent_at"]) == ("until", "order")
    assert operation_facts(act("sale", "captures: manual"))["captures"] == "manual"
    assert operation_facts(act("increment", AMOUNT, "means: total"))["means"] == "total"
    assert not any(key.startswith("payment.") for key in facts)


def test_a_policy_that_the_journal_kept_reads_back_as_the_same() -> None:
    provider = load(text_of("sale", *FULL, file="limits: off\n"))
    again = load(provider.content)
    assert again.policies == provider.policies
    assert json.loads(provider.content)["limits"] == "off"
