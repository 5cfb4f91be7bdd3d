"""`paywitness policy explain`, the part about the rules that did not decide: each one above the chosen, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.core.decide import Context
from proxy.core.lifecycle import Event, advance, conclude
from proxy.core.operation import Operation
from proxy.core.policy import Policy
from proxy.core.reading import DEFAULT_EFFECTS, Classification, Effect, Reading
from proxy.policy.explain import Supposed
from proxy.workbench.why_not import passed_over

_LOST = frozenset({Reading.NETWORK_READ_TIMEOUT, Reading.UNKNOWN_OUTCOME})


def told_of_the_others(policy: Policy, supposed: Supposed) -> Iterator[str]:
    """Lines for a person: the rules above the one that decided, in their order, each with its reason."""
    passed = list(passed_over(context_of(policy, supposed)))
    if not passed:
        return
    yield "  not by:"
    width = max(len(one.rule) for one in passed)
    for one in passed:
        yield f"    {one.rule:<{width}}  {one.why}"


def context_of(policy: Policy, supposed: Supposed) -> Context:
    """What `explain` gives to the decision for this case."""
    effect = DEFAULT_EFFECTS[supposed.failure] if supposed.sent else Effect.NONE
    lost = supposed.sent and supposed.failure in _LOST
    classification = Classification(supposed.failure, effect, "supposed", lost)
    after, _ = conclude(advance(_operation(policy), Event.SEND_RECORDED), 1, classification, policy.contract)
    rule = policy.retry_rule(supposed.failure)
    left_s = supposed.time_left_s if supposed.time_left_s is not None else policy.timeouts.deadline_s - supposed.age_s
    return Context(
        kind=policy.kind,
        state=after.state,
        contract=policy.contract,
        reading=supposed.failure,
        effect=effect,
        tries=supposed.tries,
        tries_max=rule.attempts,
        first_send_age_s=supposed.age_s,
        delay_s=min(rule.base_s, rule.cap_s),
        time_left_s=left_s,
        background=supposed.background or left_s <= 0,
        resend_for_s=policy.resolve.resend_for_s,
        answer_seen_in_doubt=bool(after.seen),
    )


def _operation(policy: Policy) -> Operation:
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
        names_purchase=False,
        provider_key=None,
        fingerprint="",
        ignore=(),
        request_hash="",
        credential="",
        revision=policy.revision,
        upstream=policy.upstream,
        created_at=0.0,
        updated_at=0.0,
    )
