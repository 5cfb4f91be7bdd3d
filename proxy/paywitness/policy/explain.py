"""Explain: what would be decided for a failure of an operation, and by which rule, by the engine's own functions."""

from __future__ import annotations

from dataclasses import dataclass

from paywitness.core.budget import cost_of
from paywitness.core.decide import Action, Decision, DecisionContext, decide, decision_context
from paywitness.core.lifecycle import Event, advance, conclude
from paywitness.core.operation import Guard, GuardKind, Operation, State
from paywitness.core.payment_rules import PaymentRules
from paywitness.core.policy import Policy
from paywitness.core.result import DEFAULT_EFFECTS, Classification, Effect, ResultClass
from paywitness.policy.check import (
    SHADOW_MODE_TEXT,
    describe_accounts,
    describe_action,
    describe_budget,
    describe_contract,
    describe_doubt,
    describe_fallbacks,
    describe_payment,
    describe_priorities,
)
from paywitness.policy.unkept_promises import needs_answer_first

_NO_RESPONSE = frozenset({ResultClass.NETWORK_READ_TIMEOUT, ResultClass.UNKNOWN_OUTCOME})
_RETRIES = frozenset({Action.RETRY_SAME_OPERATION, Action.SCHEDULE_RETRY})


@dataclass(frozen=True, slots=True)
class FailureScenario:
    """The case to explain: what went wrong, and when."""

    failure: ResultClass
    sent: bool = True  # a byte may have left
    tries: int = 1
    age_s: float = 1.0  # since the first send
    time_left_s: float | None = None  # until the caller's deadline; None: what the policy gives, less the age
    background: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    state: State
    effect: Effect
    decision: Decision
    context: DecisionContext  # what it was decided from
    lines: tuple[str, ...]


def explain(policy: Policy, scenario: FailureScenario) -> Explanation:
    """What the core decides, told in sentences."""
    effect = DEFAULT_EFFECTS[scenario.failure] if scenario.sent else Effect.NONE
    lost = scenario.sent and scenario.failure in _NO_RESPONSE
    classification = Classification(scenario.failure, effect, "supposed", lost)
    sending = advance(_scenario_operation(policy), Event.SEND_RECORDED)
    after, _ = conclude(sending, 1, classification, policy.contract)
    rule = policy.retry_rule(scenario.failure)
    left_s = scenario.time_left_s if scenario.time_left_s is not None else policy.timeouts.deadline_s - scenario.age_s
    context = decision_context(
        after,
        policy,
        classification,
        tries=scenario.tries,
        first_send_age_s=scenario.age_s,
        delay_s=min(rule.base_s, rule.cap_s),
        time_left_s=left_s,
        background=scenario.background,
    )
    decision = decide(context)
    lines = _explanation_lines(policy, scenario, after, decision, cost_of(classification))
    return Explanation(after.state, effect, decision, context, lines)


def _scenario_operation(policy: Policy) -> Operation:
    return Operation(
        id="op_supposed",
        key="",
        generation=1,
        provider=policy.provider,
        operation=policy.operation,
        kind=policy.kind,
        account="",
        client_key="",
        key_source="",
        key_names_purchase=False,
        provider_key=None,
        fingerprint="",
        ignore=(),
        request_hash="",
        credential="",
        guard=Guard(GuardKind.INTENT, "supposed") if policy.intent is not None else None,
        revision=policy.revision,
        upstream=policy.upstream,
        created_at=0.0,
        updated_at=0.0,
    )


_ACTION_TEXTS = {
    Action.RETRY_SAME_OPERATION: "send the same bytes under the same key again",
    Action.SCHEDULE_RETRY: "send the same bytes under the same key again, in the background",
    Action.WAIT_FOR_WEBHOOK: "wait for the provider's webhook",
    Action.STATUS_INQUIRY: "ask the provider what became of it",
    Action.CANCEL: "cancel it at the provider",
    Action.MARK_TERMINAL_FAILURE: "end it as failed",
    Action.ASK_CUSTOMER_ACTION: "let the customer act",
    Action.FALLBACK_NEW_ATTEMPT: "pay by another route",
    Action.SEND_TO_REVIEW: "put it before a person",
    Action.STOP: "do nothing more",
}


def _explanation_lines(
    policy: Policy, scenario: FailureScenario, after: Operation, decision: Decision, cost: int
) -> tuple[str, ...]:
    may = "money may have moved" if decision.effect_may_exist else "no money has moved"
    sent = "sent" if scenario.sent else "not sent"
    return (
        f"{policy.provider} {policy.operation} ({policy.kind}): {scenario.failure}, {sent}",
        f"  state:    {after.state} ({may})",
        f"  decision: {decision.action}: {_ACTION_TEXTS[decision.action]}",
        f"  because:  {decision.because}",
        *_unaskable_lines(policy, scenario.failure, decision),
        f"  contract: {describe_contract(policy.contract)}",
        *((f"  payment:  {describe_payment(policy.payment)}",) if policy.payment != PaymentRules() else ()),
        *((f"  in doubt: {describe_doubt(policy)}",) if after.state.in_doubt else ()),
        *((f"  action:   {describe_action(policy)}",) if after.state is State.REQUIRES_ACTION else ()),
        *(f"  {each}" for each in (describe_fallbacks(policy) if policy.fallbacks else ())),
        *(f"  {line}" for line in describe_accounts(policy)),
        *_shadow_lines(policy, scenario.failure),
        *(_limit_lines(policy, cost) if decision.action in _RETRIES else ()),
    )


def _unaskable_lines(policy: Policy, failure: ResultClass, decision: Decision) -> tuple[str, ...]:
    """That the inquiry which was decided on has to wait, if only an answer could show by what to ask."""
    if decision.action is not Action.STATUS_INQUIRY or failure not in _NO_RESPONSE or not needs_answer_first(policy):
        return ()
    return (
        "  but:      'ask' needs the provider's reference: no inquiry is possible before a response or event shows it",
    )


def _shadow_lines(policy: Policy, failure: ResultClass) -> tuple[str, ...]:
    """What is only watched: the whole policy, or the rows that could read this failure."""
    rows = [
        row
        for row in (*policy.classify.rows, *policy.classify.answers)
        if row.observe and failure in row.result_classes
    ]
    lines = [f"  mode:     {SHADOW_MODE_TEXT}"] if policy.observe else []
    return *lines, *(f"  row:      {row.name} reads {failure} (observe: passed over)" for row in rows)


def _limit_lines(policy: Policy, cost: int) -> tuple[str, ...]:
    """What a retry must also get past: whether it does depends on the minute, not on the policy alone."""
    priorities = (f"  priority: {describe_priorities(policy.priorities)}",) if policy.priorities else ()
    return f"  budget:   if it allows a retry of cost {cost}; {describe_budget(policy.budget)}", *priorities
