"""`paywitness policy check`: files and directories read as they would be at start, and described in plain lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paywitness.core.budget import BudgetRules
from paywitness.core.circuit import CircuitRules, CircuitThresholds
from paywitness.core.classify import Expression
from paywitness.core.errors import PolicyError
from paywitness.core.fallback import FallbackCause
from paywitness.core.holds import LimitedBy
from paywitness.core.inquiry import Inquiry
from paywitness.core.payment_rules import BalanceFields, IncrementMeaning, PartialCaptures, PaymentRules
from paywitness.core.payout_rules import PayoutRules
from paywitness.core.policy import DEFAULT_PRIORITY, Policy, PriorityRule, Provider
from paywitness.core.provider_contract import ErrorsUnderKey, ProviderContract
from paywitness.core.retry import RetryRule
from paywitness.core.webhook_event import WebhookRules
from paywitness.policy.block_parsers.fallback import why_never_absent
from paywitness.policy.book import compile_content, cross_file_problems, policy_files, read_policy_file
from paywitness.policy.compile import CompiledFile
from paywitness.policy.reading.templates import template_text
from paywitness.policy.reading.value_readers import duration_text

# --- Policies in words: a description of a file for people, contract by contract

_RESEND_TEXTS = {
    ErrorsUnderKey.REPLAYED: "re-sent after a lost response, inquired about after a 5xx",
    ErrorsUnderKey.REEXECUTED: "re-sent after a lost response or a 5xx",
    ErrorsUnderKey.NOT_STORED: "never re-sent in doubt",
    ErrorsUnderKey.UNKNOWN: "never re-sent in doubt",
}


SHADOW_MODE_TEXT = "observe: calls pass unchanged; the decisions that would have been made are counted"


def shadow_rows(provider: Provider) -> tuple[str, ...]:
    """The names of the rows in shadow mode, each once."""
    rows = [row for policy in provider.policies for row in (*policy.classify.rows, *policy.classify.answers)]
    rows += [row for policy in provider.policies for inquiry in policy.inquiries for row in inquiry.answers]
    rows += [row for policy in provider.policies if policy.cancel is not None for row in policy.cancel.read]
    if provider.webhook_rules is not None:
        rows += [row for answers in provider.webhook_rules.answers.values() for row in answers]
        rows += provider.webhook_rules.read
    return tuple(dict.fromkeys(row.name for row in rows if row.observe))


def describe_provider(provider: Provider) -> tuple[str, ...]:
    """The provider in a line, then its operations."""
    hosts = f" ({', '.join(provider.hosts)})" if provider.hosts else ""
    lines = [f"{provider.name} -> {provider.upstream}{hosts}, revision {provider.revision}"]
    if provider.observe:
        lines.append(f"  mode: {SHADOW_MODE_TEXT}")
    rows = shadow_rows(provider)
    if rows:
        lines.append(f"  rows in shadow mode, which decide nothing: {', '.join(rows)}")
    for policy in provider.policies:
        lines += (f"  {line}" for line in describe_policy(policy))
    if provider.webhook_rules is not None:
        lines.append(f"  {_describe_webhook(provider.webhook_rules)}")
    if provider.policies:
        lines += [f"  {each}" for each in describe_accounts(provider.policies[0])]
        lines.append(f"  budget: {describe_budget(provider.policies[0].budget)}")
    lines.append(f"  circuit: {_describe_circuit(provider.circuit)}")
    if provider.policies:
        lines.append(f"  a 429 concerns: {_LIMITED_BY[provider.policies[0].limited_by]}")
    return tuple(lines)


_LIMITED_BY = {
    LimitedBy.CREDENTIAL: "the credential of the call",
    LimitedBy.ACCOUNT: "the account of the call",
    LimitedBy.PROVIDER: "every call to the provider",
}


def _describe_webhook(rules: WebhookRules) -> str:
    variables = sorted({name for names in rules.secrets.values() for name in names})
    found = ", ".join(dict.fromkeys(str(finder) for finder, _ in rules.find))
    relay = f", relayed to {rules.relay}" if rules.relay is not None else ""
    hint = ", only a hint: Paywitness then inquires" if rules.hint else ""
    secrets = ", ".join(variables) or "no variable"
    fields = {"reference": rules.belongs.reference, "key": rules.belongs.key, "stamp": rules.belongs.stamp}
    belongs = "".join(f", ours by the {name} at {place}" for name, place in fields.items() if place is not None)
    return f"webhook: {rules.scheme}, secrets in {secrets}, found by {found}{belongs}{hint}{relay}"


def describe_accounts(policy: Policy) -> tuple[str, ...]:
    """The accounts that the file names, one line each: the merchant, and how a call names the account."""
    lines = []
    for account in policy.accounts.named:
        named = [f"{place} {value}" for place, value in account.selectors]
        if not account.selectors:
            named += [f"the owner {account.owner}"] if account.owner else []
            named += ["its credential"] if account.credentials else []
        merchant = account.merchant or policy.merchant
        of_whom = f"of the merchant {merchant}" if merchant else "a merchant of its own"
        owned = f", owner {account.owner}" if account.owner and account.selectors else ""
        given = f", credentials in {', '.join(account.variables)}" if account.variables else ""
        lines.append(f"account {account.name}: {of_whom}, named by {' and '.join(named)}{owned}{given}")
    return tuple(lines)


def describe_budget(rules: BudgetRules) -> str:
    """The allowance for retries in a window, scope by scope."""
    scopes = {
        "provider": rules.provider,
        "operation": rules.operation,
        "account": rules.account,
        "failure_class": rules.failure_class,
    }
    parts = [
        f"{name} {rule.floor:g} or {_percent(rule.ratio)} to {_percent(rule.ceiling)}" for name, rule in scopes.items()
    ]
    window = duration_text(rules.window_s)
    return f"retries in {window}: {', '.join(parts)} of first attempts; {rules.per_intent} an intent"


def _describe_circuit(rules: CircuitRules) -> str:
    judged = f"{rules.minimum} calls or more in {duration_text(rules.window_s)}"
    slow = f"slow after {duration_text(rules.slow_after_s)}"
    return f"{judged}: open at {_shares(rules.open_at)}; degraded at {_shares(rules.degrade_at)}; {slow}"


def _shares(shares: CircuitThresholds) -> str:
    parts = {"bad": shares.bad, "unknown": shares.unknown, "slow": shares.slow, "throttled": shares.throttled}
    return ", ".join(f"{name} {_percent(share)}" for name, share in parts.items() if share <= 1)


def _percent(share: float) -> str:
    return f"{share * 100:g}%"


def describe_priorities(rules: tuple[PriorityRule, ...]) -> str:
    """The rows in their order, and then the default."""
    parts: list[str] = []
    for rule in rules:
        conditions = [str(rule.when)] if rule.when is not None else []
        conditions += [f"above {rule.above}"] if rule.above is not None else []
        conditions += [f"below {rule.below}"] if rule.below is not None else []
        if not conditions:
            return ", else ".join([*parts, str(rule.priority)])
        parts.append(f"{rule.priority} if {' and '.join(conditions)}")
    return ", else ".join([*parts, str(DEFAULT_PRIORITY)])


def describe_policy(policy: Policy) -> tuple[str, ...]:
    """An operation: its kind, the provider's promises about it, and its retries."""
    routes = ", ".join(str(route) for route in policy.routes)
    condition = f" where {policy.where}" if policy.where is not None else ""
    lines = [f"{policy.operation} ({policy.kind}): {routes}{condition}"]
    if policy.kind.moves_money:
        lines.append(f"  contract: {describe_contract(policy.contract)}")
    if policy.payment != PaymentRules():
        lines.append(f"  payment: {describe_payment(policy.payment)}")
    if policy.payout is not None:
        lines.append(f"  payout: {describe_payout(policy.payout)}")
    lines.append(f"  {_describe_attempts(policy)}")
    if policy.kind.moves_money:
        lines.append(f"  in doubt: {describe_doubt(policy)}")
        if policy.resolve.cancels_expired_action:
            lines.append(f"  action:   {describe_action(policy)}")
    if policy.priorities:
        lines.append(f"  priority: {describe_priorities(policy.priorities)}")
    if policy.fallbacks:
        lines += [f"  {each}" for each in describe_fallbacks(policy)]
    return tuple(lines)


_PARTIAL_TEXTS = {PartialCaptures.SINGLE: "captured once", PartialCaptures.SEQUENCE: "captured in parts"}
_MEANS_TEXTS = {
    IncrementMeaning.TOTAL: "its amount is the new total",
    IncrementMeaning.DIFFERENCE: "its amount is added",
}


def describe_payment(rules: PaymentRules) -> str:
    """Which payment the operation acts on, and the rules for it."""
    expires_s, before = rules.authorization_expires_s, rules.capture_before
    texts = (
        f"acts on {', else '.join(map(str, rules.acts_on))}" if rules.acts_on else "",
        f"also known as {', '.join(map(str, rules.also_known_as))}" if rules.also_known_as else "",
        _describe_choice(rules.captures, "a success captures", "a success only authorises"),
        _PARTIAL_TEXTS[rules.partial] if rules.partial is not None else "",
        _describe_choice(rules.final, "what is left is released", "what is left stays authorised"),
        _MEANS_TEXTS[rules.increment_means] if rules.increment_means is not None else "",
        "continues what an earlier call began" if rules.continues else "",
        "its object pays at most once" if rules.once_per_target else "",
        "a failure after success is a return" if rules.failed_is_return else "",
        f"payments of its intent up to {rules.intent_total}" if rules.intent_total is not None else "",
        f"its object shows the intent at {rules.intent_at}" if rules.intent_at is not None else "",
        f"captured up to {rules.overcapture} above what was authorised" if rules.overcapture is not None else "",
        f"expires after {duration_text(expires_s)}" if expires_s is not None else "",
        f"to be captured before {before}" if before is not None else "",
        _describe_balance(rules.balance),
        f"limits {rules.limits}",
    )
    return "; ".join(text for text in texts if text)


def describe_payout(rules: PayoutRules) -> str:
    """Who gets the money, how much may be paid out, and which check comes first."""
    valid = duration_text(rules.approval_valid_s)
    above = " or ".join(map(str, rules.approval_above))
    texts = (
        f"to {' and '.join(map(str, rules.beneficiary))}" if rules.beneficiary else "",
        *(f"at most {cap.amount} per {cap.per} in {duration_text(cap.window_s)}" for cap in rules.caps),
        f"a person approves what is above {above}, good for {valid}" if above else "",
        f"{rules.check.url} is asked first, for {duration_text(rules.check.timeout_s)}" if rules.check else "",
    )
    return "; ".join(text for text in texts if text)


def _describe_choice(choice: bool | Expression | None, yes: str, no: str) -> str:
    if choice is None or isinstance(choice, bool):
        return "" if choice is None else yes if choice else no
    return f"{yes} if {choice}"


def _describe_balance(balance: BalanceFields) -> str:
    fields = {
        "authorised": balance.authorised,
        "captured": balance.captured,
        "capturable": balance.capturable,
        "refunded": balance.refunded,
        "disputed": balance.disputed,
    }
    shown = [f"{name} at {place}" for name, place in fields.items() if place is not None]
    return f"shows {', '.join(shown)} ({balance.unit})" if shown else ""


def describe_doubt(policy: Policy) -> str:
    """How doubt of the operation is resolved after its caller has left, step by step."""
    contract, resolve = policy.contract, policy.resolve
    steps = []
    if policy.inquiries:
        steps.append("inquiry by " + ", else ".join(_describe_inquiry(inquiry) for inquiry in policy.inquiries))
    if contract.webhook_expected:
        steps.append("reported by a webhook")
    if contract.webhook_hints:
        steps.append("inquiry at once if a webhook hints at it")
    resends = contract.errors_under_key in {ErrorsUnderKey.REPLAYED, ErrorsUnderKey.REEXECUTED}
    if contract.dedupes and resends and resolve.resend_for_s > 0:
        steps.append(f"re-sent for {duration_text(resolve.resend_for_s)} if that is safe")
    if policy.inquiries or contract.webhook_expected:
        steps.append(f"checked after {', '.join(duration_text(step) for step in resolve.schedule_s)}")
    if policy.inquiries:
        steps.append(f"absent only after {duration_text(resolve.settle_s)} of silence and the misses above")
    if policy.cancel is not None and policy.cancel.when_schedule_ran_out:
        steps.append("then cancelled")
    return "; ".join([*steps, "then a person decides" if steps else "a person decides at once"])


def describe_action(policy: Policy) -> str:
    """What happens to a payment that its customer must confirm, and does not."""
    expires = duration_text(policy.resolve.action_expires_s)
    asked = f"inquiry after {expires}" if policy.inquiries else f"over after {expires}, without a way to inquire"
    if policy.resolve.cancels_expired_action:
        return f"{asked}; cancelled if it is shown that the customer has still not acted, else set aside"
    return f"{asked}; set aside if the customer has still not acted"


def _describe_inquiry(inquiry: Inquiry) -> str:
    query = "&".join(f"{name}={template_text(value)}" for name, value in inquiry.query)
    misses = "1 miss" if inquiry.misses == 1 else f"{inquiry.misses} misses"
    lag = f" over {duration_text(inquiry.lag_s)}" if inquiry.lag_s > 0 else ""
    fields = inquiry.belongs
    places = {"reference": fields.reference, "key": fields.key, "stamp": fields.stamp}
    belongs = "".join(f", ours by the {name} at {place}" for name, place in places.items() if place is not None)
    if inquiry.shared:
        since = f", unless it was made later by {fields.denied_at}" if fields.denied_at is not None else ""
        belongs += f", shared with other operations: a denial counts only after all has settled{since}"
    known = ", once a response or event has shown its reference" if inquiry.needs_reference else ""
    return (
        f"{inquiry.method} {template_text(inquiry.path)}{'?' if query else ''}{query} ({misses}{lag}{known}{belongs})"
    )


def describe_fallbacks(policy: Policy) -> tuple[str, ...]:
    """Which other routes are taken, and after which ends."""
    parts = []
    for fallback in policy.fallbacks:
        after = f" after {fallback.after} tries" if fallback.after is not None else ""
        parts.append(f"{fallback.to} when {' or '.join(sorted(fallback.when))}{after}")
    lists_absent = any(FallbackCause.ABSENT in fallback.when for fallback in policy.fallbacks)
    never = why_never_absent(policy) if lists_absent else ""
    rejected = [row.name for row in (*policy.classify.rows, *policy.classify.answers) if row.fallback]
    lines = [f"fallback: {', else '.join(parts)}"]
    lines += [f"fallback: rejected is what {', '.join(rejected)} reads"] if rejected else []
    lines += [f"fallback: never when absent: {never}"] if never else []
    return tuple(lines)


def describe_contract(contract: ProviderContract) -> str:
    """The provider's promises, and whether they allow a re-send in doubt."""
    if contract.send_as is None:
        key = "takes no key; never re-sent in doubt"
    elif not contract.dedupes:
        key = f"key as {contract.send_as}, remembered for an unknown time; never re-sent in doubt"
    else:
        window = duration_text(contract.window_s or 0.0)
        key = f"key as {contract.send_as}, remembered {window}{_assumed(contract, 'window')}"
        errors = f"errors {contract.errors_under_key}{_assumed(contract, 'errors_under_key')}"
        key += f", {errors}: {_RESEND_TEXTS[contract.errors_under_key]}"
    asked = "inquiries possible" if contract.supports_inquiry else "no inquiries"
    hints = "; a webhook is only a hint" if contract.webhook_hints else ""
    return f"{key}; {asked}" + ("; a webhook is expected" if contract.webhook_expected else hints)


def _assumed(contract: ProviderContract, fact: str) -> str:
    return " (assumed)" if fact in contract.assumed else ""


def _describe_attempts(policy: Policy) -> str:
    rules = [f"tries: {_describe_rule(policy.retry_default)}"]
    rules += [f"{reading} {_describe_rule(rule)}" for reading, rule in policy.retry.items()]
    timeouts = policy.timeouts
    waits = f"first byte {duration_text(timeouts.first_byte_s)}, deadline {duration_text(timeouts.deadline_s)}"
    return f"{'; '.join(rules)}; {waits}"


def _describe_rule(rule: RetryRule) -> str:
    if rule.attempts == 1:
        return "1"
    return f"{rule.attempts}, {rule.jitter} {duration_text(rule.base_s)} up to {duration_text(rule.cap_s)}"


# --- Check


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check. `ok`: all files may be put in force as they are."""

    ok: bool
    lines: tuple[str, ...]


def check(paths: Iterable[Path]) -> CheckReport:
    """Check files and directories together. It never raises: each problem is a line."""
    files, lines = _files_of(paths)
    ok = not lines
    compiled: list[CompiledFile] = []
    for path in files:
        try:
            found = compile_content(read_policy_file(path), str(path))
        except PolicyError as error:
            ok = False
            lines += [f"{path}: {_plural(len(error.problems), 'error')}", *(f"  {line}" for line in error.problems)]
            continue
        compiled.append(found)
        lines += _report_lines(found)
    between = cross_file_problems(compiled, complete=False)
    lines += [f"  {line}" for line in between]
    lines += _unchecked_fallbacks(compiled)
    return CheckReport(ok and not between, tuple(lines))


def _files_of(paths: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """The files to check, each once, and the problems with the paths themselves."""
    files: dict[Path, None] = {}
    problems: list[str] = []
    for path in paths:
        try:
            found = policy_files(path) if path.is_dir() else [path]
        except PolicyError as error:
            problems += error.problems
            continue
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror or type(error).__name__}")
            continue
        if not found:
            problems.append(f"{path}: found no policy file (*.yaml, *.yml)")
        files.update(dict.fromkeys(found))
    if not files and not problems:
        problems.append("found nothing to check: name a policy file or a directory of them")
    return list(files), problems


def _report_lines(found: CompiledFile) -> list[str]:
    provider = found.provider
    lines = [f"{provider.source}: OK", *(f"  {line}" for line in describe_provider(provider))]
    lines += [f"  warning: {line}" for line in found.warnings]
    return lines


def _unchecked_fallbacks(files: list[CompiledFile]) -> list[str]:
    """Warnings for fallbacks to a provider that is not among the files checked. Only a whole directory makes them
    errors."""
    names = {found.provider.name for found in files}
    return [
        f"  warning: {entry.location}: {entry.path}: '{entry.fallback.to}' is not among the files checked"
        for found in files
        for entry in found.fallbacks
        if entry.fallback.to not in names
    ]


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
