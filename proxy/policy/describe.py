"""Policies in words: what a person reads to see what a file means, contract by contract."""

from __future__ import annotations

from proxy.core.backoff import RetryRule
from proxy.core.contract import ErrorsUnderKey, ProviderContract
from proxy.core.policy import Policy, Provider
from proxy.policy.scalars import duration_text

_AFTER = {
    ErrorsUnderKey.REPLAYED: "re-sent after a lost answer, asked about after a 5xx",
    ErrorsUnderKey.REEXECUTED: "re-sent after a lost answer or a 5xx",
    ErrorsUnderKey.NOT_STORED: "never re-sent in doubt",
    ErrorsUnderKey.UNKNOWN: "never re-sent in doubt",
}


def describe_provider(provider: Provider) -> tuple[str, ...]:
    """The provider in a line, then its operations."""
    hosts = f" ({', '.join(provider.hosts)})" if provider.hosts else ""
    lines = [f"{provider.name} -> {provider.upstream}{hosts}, revision {provider.revision}"]
    for policy in provider.policies:
        lines += (f"  {line}" for line in describe_policy(policy))
    return tuple(lines)


def describe_policy(policy: Policy) -> tuple[str, ...]:
    """An operation: what it is, what the provider promises about it, how it is tried."""
    routes = ", ".join(str(route) for route in policy.routes)
    condition = f" where {policy.where}" if policy.where is not None else ""
    lines = [f"{policy.operation} ({policy.kind}): {routes}{condition}"]
    if policy.kind.moves_money:
        lines.append(f"  contract: {describe_contract(policy.contract)}")
    lines.append(f"  {_describe_tries(policy)}")
    return tuple(lines)


def describe_contract(contract: ProviderContract) -> str:
    """What the provider promises, and so what doubt permits."""
    if contract.send_as is None:
        key = "takes no key; never re-sent in doubt"
    elif not contract.dedupes:
        key = f"key as {contract.send_as}, remembered for nobody knows how long; never re-sent in doubt"
    else:
        window = duration_text(contract.window_s or 0.0)
        key = f"key as {contract.send_as}, remembered {window}{_assumed(contract, 'window')}"
        errors = f"errors {contract.errors_under_key}{_assumed(contract, 'errors_under_key')}"
        key += f", {errors}: {_AFTER[contract.errors_under_key]}"
    asked = "can be asked" if contract.can_be_asked else "cannot be asked"
    return f"{key}; {asked}" + ("; a webhook is expected" if contract.webhook_expected else "")


def _assumed(contract: ProviderContract, fact: str) -> str:
    return " (assumed)" if fact in contract.assumed else ""


def _describe_tries(policy: Policy) -> str:
    rules = [f"tries: {_describe_rule(policy.retry_default)}"]
    rules += [f"{reading} {_describe_rule(rule)}" for reading, rule in policy.retry.items()]
    timeouts = policy.timeouts
    waits = f"first byte {duration_text(timeouts.first_byte_s)}, deadline {duration_text(timeouts.deadline_s)}"
    return f"{'; '.join(rules)}; {waits}"


def _describe_rule(rule: RetryRule) -> str:
    if rule.attempts == 1:
        return "1"
    return f"{rule.attempts}, {rule.jitter} {duration_text(rule.base_s)} up to {duration_text(rule.cap_s)}"
