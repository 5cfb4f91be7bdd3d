"""Why a rule did not apply: said of every rule that does not, of none that does; and `explain` passes it on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paywitness.core.decide import DEFAULT_RULE, RULES, DecisionContext, decide
from paywitness.core.operation import State
from paywitness.core.policy import Policy
from paywitness.core.provider_contract import ErrorsUnderKey, FieldKind, FieldRef, OperationKind, ProviderContract
from paywitness.core.result import DEFAULT_EFFECTS, ResultClass
from paywitness.policy.book import load_directory
from paywitness.policy.explain import FailureScenario, explain
from paywitness.tools.policy_explain import REASONS, reason_not_applied, skipped_rule_lines, skipped_rules

TOP = Path(__file__).resolve().parents[2]
KEY = FieldRef(FieldKind.HEADER, "Idempotency-Key")

contracts = st.builds(
    ProviderContract,
    send_as=st.sampled_from([None, KEY]),
    window_s=st.sampled_from([None, 60.0, 86_400.0]),
    errors_under_key=st.sampled_from(ErrorsUnderKey),
    supports_inquiry=st.booleans(),
    webhook_expected=st.booleans(),
)
readings = st.sampled_from(ResultClass)


@st.composite
def contexts(draw: st.DrawFn) -> DecisionContext:
    reading = draw(readings)
    flags = (
        "background caller_waiting response_seen_in_doubt cancel_sent same_upstream request_available guarded "
        "enough_tries_here cancel_wanted inquired refused_by_limits budget_allows absent"
    )
    return DecisionContext(
        kind=OperationKind.SALE,
        state=draw(st.sampled_from(State)),
        contract=draw(contracts),
        result_class=reading,
        effect=DEFAULT_EFFECTS[reading],
        tries=draw(st.integers(0, 4)),
        tries_max=3,
        first_send_age_s=draw(st.sampled_from([0.0, 50.0, 130.0, 80_000.0])),
        delay_s=draw(st.sampled_from([0.0, 1.0, 30.0])),
        time_left_s=draw(st.sampled_from([0.0, 0.2, 20.0])),
        resend_for_s=120.0,
        fallback_to=draw(st.sampled_from([None, "other"])),
        **{name: draw(st.booleans()) for name in flags.split()},
    )


@given(contexts())
def test_a_reason_is_given_if_and_only_if_the_rule_does_not_apply(context: DecisionContext) -> None:
    for rule in RULES:
        assert bool(reason_not_applied(rule.name, context)) != rule.applies(context), rule.name


def test_every_rule_has_its_reasons_in_the_same_order() -> None:
    assert list(REASONS) == [rule.name for rule in RULES]
    assert reason_not_applied(DEFAULT_RULE.name, next(iter_contexts())) == ""


def iter_contexts():
    base = DecisionContext(
        kind=OperationKind.SALE,
        state=State.UNKNOWN,
        contract=ProviderContract(KEY, 86_400.0, ErrorsUnderKey.REPLAYED, supports_inquiry=True),
        result_class=ResultClass.NETWORK_READ_TIMEOUT,
        effect=DEFAULT_EFFECTS[ResultClass.NETWORK_READ_TIMEOUT],
        tries=1,
        tries_max=3,
        first_send_age_s=1.0,
        delay_s=0.1,
        time_left_s=10.0,
        background=False,
        resend_for_s=120.0,
    )
    for state, reading in product(State, ResultClass):
        yield replace(base, state=state, result_class=reading)


def test_the_rules_passed_over_are_those_above_the_one_that_decides() -> None:
    for context in iter_contexts():
        names = [rule.name for rule in RULES]
        chosen = decide(context).because
        above = names[: names.index(chosen)] if chosen in names else names
        assert [passed.rule for passed in skipped_rules(context)] == above


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"first_send_age_s": 80_000.0},
            "the first send is 22.2h old by then, and a re-send relies on the key for 19.2h (80% of its window)",
        ),
        ({"response_seen_in_doubt": True}, "would only repeat it (replayed)"),
        ({"tries": 3}, "no attempt is left (3 of 3)"),
        ({"time_left_s": 0.3}, "do not fit into the caller's last 300ms"),
        ({"budget_allows": False}, "the retry budget is used up"),
        ({"cancel_sent": True}, "a cancel was sent"),
        ({"same_upstream": False}, "another address"),
        ({"request_available": False}, "bytes are not stored"),
        ({"refused_by_limits": True}, "our limits refused this attempt"),
        ({"background": True}, "the caller has left"),
        ({"result_class": ResultClass.VALIDATION_ERROR}, "would be refused again"),
        ({"result_class": ResultClass.ISSUER_HARD_DECLINE}, "a retry would be a new charge"),
        ({"contract": ProviderContract(None, None)}, "takes no key"),
        ({"contract": ProviderContract(KEY, None)}, "it is unknown how long"),
        ({"contract": ProviderContract(KEY, 86_400.0, ErrorsUnderKey.NOT_STORED)}, "could execute it a second time"),
    ],
)
def test_the_reason_against_a_resend_is_the_one_that_holds(changed: dict, says: str) -> None:
    base = next(context for context in iter_contexts() if context.state is State.UNKNOWN)
    base = replace(base, result_class=ResultClass.NETWORK_READ_TIMEOUT)
    assert reason_not_applied("in_doubt_same_key_is_safe", base) == ""
    assert says in reason_not_applied("in_doubt_same_key_is_safe", replace(base, **changed))


def shipped_policies() -> list[Policy]:
    return [policy for provider in load_directory(TOP / "policies").providers.values() for policy in provider.policies]


def test_the_lines_name_each_rule_above_with_its_reason() -> None:
    (policy,) = [one for one in shipped_policies() if (one.provider, one.operation) == ("acme", "refund")]
    lines = list(skipped_rule_lines(explain(policy, FailureScenario(ResultClass.TEMPORARY_PROVIDER_ERROR))))
    assert lines[0] == "  not by:"
    assert lines[-1].split(maxsplit=1) == [
        "in_doubt_same_key_is_safe",
        "a whole response was seen, and under its key the provider would only repeat it (replayed)",
    ]
    assert list(skipped_rule_lines(explain(policy, replace(FailureScenario(ResultClass.PENDING))))) != []
