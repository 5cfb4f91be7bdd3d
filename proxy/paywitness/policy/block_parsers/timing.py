"""Timeouts, retries and the pace of resolution: durations and counts, each within its bounds."""

from __future__ import annotations

from itertools import pairwise

from paywitness.core import policy_defaults
from paywitness.core.policy import ResolutionRules, Timeouts
from paywitness.core.provider_contract import ProviderContract
from paywitness.core.result import FAILURE_CLASSES, ResultClass
from paywitness.core.retry import Jitter, RetryRule
from paywitness.option_defaults import DEFAULTS
from paywitness.policy.reading.locations import did_you_mean, listed
from paywitness.policy.reading.section import Layers, Section, section_of
from paywitness.policy.reading.value_readers import choice_of, duration, duration_text, one_of, whole_number
from paywitness.policy.schema import RETRY_RULE

# An attempt may still be writing until its lease is over. A file is checked without `--lease-seconds`.
_LEASE_S = DEFAULTS.lease_s
_DAY_S = 86400.0
_SCHEDULE_STEPS_MAX = 50

# The classes after which a retry is allowed. A decline, an invalid call or a refused credential is never retried
# automatically.
RETRYABLE = (
    ResultClass.RATE_LIMITED,
    ResultClass.TEMPORARY_PROVIDER_ERROR,
    ResultClass.NETWORK_CONNECT_FAILURE,
    ResultClass.NETWORK_READ_TIMEOUT,
    ResultClass.PROVIDER_TIMEOUT,
    ResultClass.IDEMPOTENCY_IN_FLIGHT,
    ResultClass.UNKNOWN_OUTCOME,
)


def read_timeouts(layers: Layers) -> Timeouts:
    default = Timeouts()
    found = Timeouts(
        connect_s=layers.read_or("connect", duration(0.05, 60), default.connect_s),
        tls_s=layers.read_or("tls", duration(0.05, 60), default.tls_s),
        write_s=layers.read_or("write", duration(0.05, 20), default.write_s),
        first_byte_s=layers.read_or("first_byte", duration(0.05, 300), default.first_byte_s),
        body_idle_s=layers.read_or("body_idle", duration(0.05, 300), default.body_idle_s),
        deadline_s=layers.read_or("deadline", duration(0.1, 600), default.deadline_s),
    )
    section = layers.having("first_byte") or layers.having("deadline")
    if section is not None and found.first_byte_s > found.deadline_s:
        key = "first_byte" if section.has("first_byte") else "deadline"
        first_byte, deadline = duration_text(found.first_byte_s), duration_text(found.deadline_s)
        section.add_warning(
            key, f"lets an attempt wait {first_byte}, but callers wait {deadline}: they get 504 before it ends"
        )
    return found


def read_retry(operation: Section | None, provider: Section | None) -> tuple[RetryRule, dict[ResultClass, RetryRule]]:
    """The default rule and those of the classes. A key of a class counts before any default's."""
    nearest, further = _rules(operation), _rules(provider)
    default = _rule(Layers(nearest.get("default"), further.get("default")), RetryRule())
    rules = {}
    for reading in RETRYABLE:
        own = Layers(nearest.get(reading), further.get(reading))
        if own.sections or reading is ResultClass.RATE_LIMITED:
            rules[reading] = _rule(own, _class_default(default, reading))
    return default, rules


def _class_default(default: RetryRule, reading: ResultClass) -> RetryRule:
    if reading is not ResultClass.RATE_LIMITED:
        return default
    base_s = max(default.base_s, policy_defaults.RETRY_RATE_LIMITED_BASE_S)
    return RetryRule(default.attempts, default.jitter, base_s, max(default.cap_s, base_s))


def _rules(parent: Section | None) -> dict[str, Section]:
    """The entries under `retry` by name: `default` and failure classes."""
    found: dict[str, Section] = {}
    if parent is None:
        return found
    for entry in parent.entries("retry"):
        allowed = ["default", *(str(reading) for reading in RETRYABLE)]
        if entry.name in allowed:
            section = section_of(entry, RETRY_RULE, parent.problems)
            if section is not None:
                found[entry.name] = section
            continue
        is_class = entry.name in {str(reading) for reading in FAILURE_CLASSES}
        why = "found a class that is never retried" if is_class else "found an unknown class"
        near = "" if is_class else did_you_mean(entry.name, allowed)
        parent.problems.add(entry.location, entry.path, f"{why}, allowed: {listed(allowed)}{near}")
    return found


def _rule(layers: Layers, default: RetryRule) -> RetryRule:
    found = RetryRule(
        attempts=layers.read_or("attempts", whole_number(1, 10), default.attempts),
        jitter=layers.read_or("backoff", one_of(Jitter), default.jitter),
        base_s=layers.read_or("base", duration(0.001, 3600), default.base_s),
        cap_s=layers.read_or("cap", duration(0.001, 3600), default.cap_s),
    )
    if found.cap_s < found.base_s:
        cap, base = duration_text(found.cap_s), duration_text(found.base_s)
        layers.add_problem("cap" if layers.having("cap") else "base", f"found a cap of {cap} under the base of {base}")
    return found


def read_resolve(
    layers: Layers, contract: ProviderContract, timeouts: Timeouts, operation: str, *, may_cancel: bool | None
) -> ResolutionRules:
    """How doubt is resolved, compared with the contract: no re-send after the window, no absence before its time.
    `may_cancel`: whether the operation has a `cancel`; None: no customer ever has to confirm it."""
    default = ResolutionRules()
    settle_s = layers.read_or("settle", duration(1, 30 * _DAY_S), default.settle_s)
    least_s = _LEASE_S + timeouts.first_byte_s
    if settle_s < least_s:
        first_byte = duration_text(timeouts.first_byte_s)
        why = f"{duration_text(_LEASE_S)} of lease and {first_byte} of first_byte in {{operations}}"
        found = f"found {duration_text(settle_s)}, allowed: at least {duration_text(least_s)} ({why})"
        layers.add_problem("settle", f"{found}: a request may still arrive until then", operation=operation)
    resend_for_s = layers.read("resend_for", duration(0, 30 * _DAY_S))
    if resend_for_s is None:
        until_s = contract.resend_until_s if contract.dedupes else default.resend_for_s
        resend_for_s = min(default.resend_for_s, until_s)
    elif contract.dedupes and resend_for_s > contract.resend_until_s and contract.window_s is not None:
        window, most = duration_text(contract.window_s), duration_text(contract.resend_until_s)
        share = f"{policy_defaults.WINDOW_SHARE_FOR_RESEND:.0%} of the window of {window} in {{operations}}"
        allowed = f"allowed: at most {most} ({share})"
        found = f"found {duration_text(resend_for_s)}, {allowed}"
        layers.add_problem("resend_for", f"{found}: later the provider may have forgotten the key", operation=operation)
    schedule = layers.read_list("schedule", duration(0.1, 30 * _DAY_S))
    if any(later <= earlier for earlier, later in pairwise(schedule)):
        layers.add_problem("schedule", "found steps that do not rise, allowed: each longer than the one before")
    if len(schedule) > _SCHEDULE_STEPS_MAX:
        layers.add_problem("schedule", f"found {len(schedule)} steps, allowed: at most {_SCHEDULE_STEPS_MAX}")
    action_expires_s = layers.read_or("action_expires", duration(60, 30 * _DAY_S), default.action_expires_s)
    cancels = _cancels_expired_action(layers, contract, operation, may_cancel=may_cancel)
    return ResolutionRules(settle_s, resend_for_s, schedule or default.schedule_s, action_expires_s, cancels)


def _cancels_expired_action(
    layers: Layers, contract: ProviderContract, operation: str, *, may_cancel: bool | None
) -> bool:
    """Whether to cancel a payment that its customer has not confirmed in time. An inquiry must first show that it is
    unconfirmed, and the policy must have a `cancel`."""
    wanted = layers.read_or("on_action_expired", choice_of("set_aside", "cancel"), "set_aside") == "cancel"
    if not wanted or may_cancel is None:
        return False
    if not may_cancel:
        found = "found 'cancel', which needs 'cancel:' in {operations}: without it there is no way to cancel it"
        layers.add_problem("on_action_expired", found, operation=operation)
    if not contract.supports_inquiry:
        found = "found 'cancel', which needs 'ask' in {operations}: it is cancelled only if an inquiry shows it open"
        layers.add_problem("on_action_expired", found, operation=operation)
    return True
