"""A whole file: its top level, its operations, and the checks that need all of it together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from paywitness.core import policy_defaults
from paywitness.core.account_rules import AccountRules
from paywitness.core.addresses import is_private
from paywitness.core.bodies.tree import Encoding
from paywitness.core.holds import LimitedBy
from paywitness.core.inquiry import Inquiry
from paywitness.core.policy import ConnectionUse, Policy, Provider, Route, Timeouts, UnmatchedCalls
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.policy.block_parsers.access import read_accounts, read_credentials, read_trust, read_who_am_i
from paywitness.policy.block_parsers.fallback import (
    FallbackEntry,
    check_fallbacks,
    covers,
    read_fallbacks,
    read_mirrored,
)
from paywitness.policy.block_parsers.idempotency import key_field_or_none, read_key_rules
from paywitness.policy.block_parsers.limits import read_budget, read_circuit, read_priorities
from paywitness.policy.block_parsers.operations import SharedRules, read_operation
from paywitness.policy.block_parsers.payments import read_limit_mode
from paywitness.policy.block_parsers.response_rules import read_advice, read_answers, read_rows, read_tables
from paywitness.policy.block_parsers.timing import read_retry, read_timeouts
from paywitness.policy.block_parsers.webhook import evidence_scheme, read_webhook, webhook_is_hint
from paywitness.policy.identity_rules import identity_of
from paywitness.policy.reading.document import MapNode, canonical_text, json_value
from paywitness.policy.reading.expressions import condition_over
from paywitness.policy.reading.locations import FileProblems, SourceLocation
from paywitness.policy.reading.section import Layers, Section
from paywitness.policy.reading.templates import template_text
from paywitness.policy.reading.value_readers import (
    body_path,
    choice_of,
    field_ref,
    host,
    listen,
    name,
    one_of,
    provider_name,
    upstream,
)
from paywitness.policy.schema import FILE, IDEMPOTENCY, TIMEOUTS
from paywitness.policy.unkept_promises import warn_of_unkept_promises

# The members of RFC 9457, and those that report the effect on the money. The provider's own members are beside them.
_PROBLEM_MEMBERS = frozenset(
    {"type", "title", "status", "detail", "instance"}
    | {"outcome", "sent", "operation", "side_effect_may_exist", "advice", "next_check_at"}
)
_REVISION_LENGTH = 16  # hexadecimal digits: 64 bits, for a set of files that people write


@dataclass(frozen=True, slots=True)
class CompiledFile:
    """A provider, and the values that must still be compared with the other files."""

    provider: Provider
    warnings: tuple[str, ...]
    fallbacks: tuple[FallbackEntry, ...]
    location: SourceLocation


def revision_of(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:_REVISION_LENGTH]


def compile_file(document: MapNode, source: str, problems: FileProblems) -> CompiledFile | None:
    """The provider that the (resolved) document describes, or None with the reasons among the problems."""
    content = canonical_text(document)
    file = Section(document, "", FILE, problems)
    shared = _read_shared(file, revision_of(content))
    _check_provider_level(file)
    read = [read_operation(entry, shared) for entry in file.entries("operations")]
    policies = _continued(tuple(policy for policy in read if policy is not None), shared.account)
    if not file.entries("operations") and file.has("operations"):
        file.add_problem("operations", "found no operation, allowed: at least one")
    _check_names(file, policies)
    _check_routes(file, policies)
    _check_inquiries(file, policies)
    check_fallbacks(file, shared.fallbacks, policies)
    provider = _provider(file, shared, policies, content, source)
    if problems.count:
        return None
    warn_of_unkept_promises(file, policies, provider.webhook_rules)
    return CompiledFile(provider, problems.warnings, shared.fallbacks, document.location)


def _continued(policies: tuple[Policy, ...], account: tuple[FieldRef, ...]) -> tuple[Policy, ...]:
    """The policies, changed if one of them continues a payment that an earlier call began. The body of such a call may
    not name the account. Then it finds its payment in any account, by the name that the response shows."""
    goes_on = any(each.payment.continues or (each.kind.pays and each.payment.acts_on) for each in policies)
    if not goes_on or not any(selector.kind is FieldKind.BODY for selector in account):
        return policies
    return tuple(
        replace(policy, payment=replace(policy.payment, continued_without_account=True)) if policy.kind.pays else policy
        for policy in policies
    )


def _read_shared(file: Section, revision: str) -> SharedRules:
    own_name = file.read_or("provider", provider_name, "unnamed")
    before = file.problems.count
    tables = read_tables(file)
    answers = read_answers(file, tables)
    classify = read_rows(file, "classify", tables)
    rows_are_whole = file.problems.count == before
    encoding = file.read_or("body", one_of(Encoding), Encoding(policy_defaults.BODY))
    account = _read_account(file)
    return SharedRules(
        file=file,
        name=own_name,
        key_name=file.read_or("formerly", name, own_name),
        revision=revision,
        upstream=_read_upstream(file),
        trust=read_trust(file),
        connections=file.read_or("connections", one_of(ConnectionUse), ConnectionUse(policy_defaults.CONNECTIONS)),
        encoding=encoding,
        account=account,
        merchant=_read_merchant(file, account),
        tables=tables,
        advice_by_code=read_advice(file),
        answers=answers,
        classify=classify,
        all_rows_valid=rows_are_whole,
        credentials=read_credentials(file),
        accounts=_read_account_rules(file, account),
        fallbacks=read_fallbacks(file, own_name=own_name),
        has_evidence_webhook=evidence_scheme(file) is not None,
        has_hint_webhook=webhook_is_hint(file),
        observe=file.read_or("mode", choice_of("enforce", "observe"), "enforce") == "observe",
        budget=read_budget(file),
        request_id_header=_read_request_id(file),
        limited_by=file.read_or("limited_by", one_of(LimitedBy), LimitedBy(policy_defaults.LIMITED_BY)),
        priorities=read_priorities(file, condition_over(encoding), has_money=_has_money(file)),
    )


def _has_money(file: Section) -> bool:
    """Whether some operation names the fields of its amount and currency."""
    nodes = (entry.node for entry in file.entries("operations"))
    return any(isinstance(node, MapNode) and {"amount", "currency"} <= node.entries.keys() for node in nodes)


def _provider(file: Section, shared: SharedRules, policies: tuple[Policy, ...], content: str, source: str) -> Provider:
    problem = file.node("problem")
    accepted = file.read("identity_change", choice_of("accepted")) is not None
    if accepted:
        file.add_warning(
            "identity_change", "accepts that keys change their meaning; take it out once the file is in force"
        )
    stamped = any(policy.stamp is not None for policy in policies)
    webhook_rules = read_webhook(file, shared.answers, shared.tables, stamped=stamped or not policies)
    if shared.accounts.many and not shared.accounts.named and webhook_rules is not None and "" in webhook_rules.secrets:
        file.add_warning(
            "webhook",
            "with 'merchants: many' an event that does not name its owner matches nothing: let 'webhook.account' name "
            "it, or give each owner's secrets under its id, as in secrets: {acct_1: [env:NAME]}",
        )
    return Provider(
        name=shared.name,
        upstream=shared.upstream,
        hosts=file.read_list("hosts", host) or _own_hosts(shared.upstream),
        revision=shared.revision,
        content=content,
        source=source,
        policies=policies,
        unmatched=file.read_or("unmatched", one_of(UnmatchedCalls), UnmatchedCalls(policy_defaults.UNMATCHED)),
        listen=file.read("listen", listen),
        timeouts=_timeouts(file),
        problem=json_value(problem) if problem is not None else None,
        identity=identity_of(shared.key_name, shared.merchant, shared.accounts.named, policies),
        identity_change_accepted=accepted,
        webhook_rules=webhook_rules,
        account=shared.account,
        key_name=shared.key_name,
        trust=shared.trust,
        circuit=read_circuit(file),
        observe=shared.observe,
        same_credentials_as=read_mirrored(file, own_name=shared.name),
    )


def _own_hosts(address: str) -> tuple[str, ...]:
    """The upstream's own name, which clients use. An address of this machine or network is no provider's name."""
    hostname = urlsplit(address).hostname or ""
    return () if is_private(hostname) or ":" in hostname or hostname.replace(".", "").isdigit() else (hostname,)


def _timeouts(file: Section) -> Timeouts:
    return read_timeouts(Layers(file.child("timeouts", TIMEOUTS)))


def _read_upstream(file: Section) -> str:
    found = file.read("upstream", upstream)
    if found is None:
        return ""
    parts = urlsplit(found)
    if parts.scheme == "http" and not is_private(parts.hostname or ""):
        file.add_warning("upstream", "is plain http beyond this machine and private networks: others may read along")
    return found


# Credentials change, and an account must not. `Api-Key` and `X-Auth-Token` are credentials too, but a policy in use may
# select an account by them, and its sidecar must still start.
_NOT_AN_ACCOUNT = frozenset({"authorization", "cookie", "x-api-key"})
_SECRET_HEADERS = _NOT_AN_ACCOUNT | {"set-cookie", "authentication-info"}


def _read_request_id(file: Section) -> str:
    """The response header that names a request, for the provider's support. It is stored and shown, so it must hold no
    secret."""
    found = file.read("request_id", field_ref(FieldKind.HEADER))
    if found is not None and found.name.lower() in _SECRET_HEADERS:
        file.add_problem("request_id", f"{found.name} may hold a secret, and a request id is kept and shown")
    return found.name if found is not None else ""


def _read_account(file: Section) -> tuple[FieldRef, ...]:
    kinds = (FieldKind.CONST, FieldKind.HEADER, FieldKind.BODY, FieldKind.PATH)
    found = file.read_list("account", field_ref(*kinds))
    for selector in found:
        if selector.kind is FieldKind.HEADER and selector.name.lower() in _NOT_AN_ACCOUNT:
            file.add_problem(
                "account", f"found '{selector}', a credential, allowed: what outlives it, such as an account's id"
            )
    return found or (FieldRef(FieldKind.CONST, policy_defaults.ACCOUNT),)


def _read_merchant(file: Section, account: tuple[FieldRef, ...]) -> str:
    found = file.read_or("merchant", name, "")
    selectors = [str(selector) for selector in account if selector.kind is not FieldKind.CONST]
    if found and selectors and not file.has("accounts"):  # otherwise it is the merchant of the accounts listed there
        file.add_warning(
            "merchant",
            f"makes one merchant of all accounts that {' and '.join(selectors)} can name: equal order numbers of two "
            "of them are one purchase; say in 'accounts' whose each is, or leave it out unless they are the same "
            "merchant's",
        )
    return found


def _read_account_rules(file: Section, account: tuple[FieldRef, ...]) -> AccountRules:
    who_am_i = read_who_am_i(file)
    many = file.read_or("merchants", choice_of("one", "many"), "one") == "many"
    if many and not file.has("who_am_i") and not file.has("accounts"):
        file.add_problem(
            "merchants", "found 'many' without 'who_am_i' or 'accounts', allowed: with one of them, or 'one'"
        )
    if many and file.has("merchant") and not file.has("accounts"):
        found = "found 'many' beside 'merchant', which makes one merchant of all owners, allowed: one of the two"
        file.add_problem("merchants", found)
    return AccountRules(who_am_i, many, named=read_accounts(file, account, many=many))


def _check_problem(file: Section) -> None:
    for entry in file.entries("problem"):
        if entry.name in _PROBLEM_MEMBERS:
            found = "found a member that every answer of ours has already, allowed: other names"
            file.problems.add(entry.location, entry.path, found)


def _check_provider_level(file: Section) -> None:
    """Read the provider's own blocks by themselves: a block that every operation overrides must still be valid.

    This is done before the operations are read, so that a problem here is not reported as one of theirs.
    """
    idempotency = file.child("idempotency", IDEMPOTENCY)
    if idempotency is not None and idempotency.has("send_as"):
        read_key_rules(Layers(idempotency), moves_money=False)
    read_retry(None, file)
    _check_problem(file)
    file.read("stamp", key_field_or_none)
    file.read("limits", read_limit_mode)
    for key in ("ignore", "never_store"):
        file.read_list(key, body_path)


def _check_names(file: Section, policies: tuple[Policy, ...]) -> None:
    """Refuse two operations with one name in keys, because they would count as one operation."""
    entries = {entry.name: entry for entry in file.entries("operations")}
    seen: dict[str, str] = {}
    for policy in policies:
        other = seen.setdefault(policy.names[1], policy.operation)
        if other != policy.operation:
            entry = entries[policy.operation]
            found = f"goes by the name '{policy.names[1]}' in keys, as '{other}' does, allowed: a name for each"
            file.problems.add(entry.location, entry.path, f"found an operation that {found}")


def _check_routes(file: Section, policies: tuple[Policy, ...]) -> None:
    """Refuse an operation that no call can reach because an earlier one takes all of its calls."""
    entries = {entry.name: entry for entry in file.entries("operations")}
    for index, later in enumerate(policies):
        for earlier in policies[:index]:
            for path in later.routes:
                if _covers_all_calls(earlier, later, path):
                    entry = entries[later.operation]
                    found = f"found {path}, all of whose calls '{earlier.operation}' above takes"
                    allowed = "allowed: a 'where' above to tell them apart, or this one before it"
                    file.problems.add(entry.location, f"{entry.path}.match", f"{found}, {allowed}")


def _covers_all_calls(earlier: Policy, later: Policy, path: Route) -> bool:
    if earlier.where is not None and earlier.where != later.where:
        return False
    return any(covers(route, path) for route in earlier.routes)


def _check_inquiries(file: Section, policies: tuple[Policy, ...]) -> None:
    """Refuse an inquiry by POST that is itself one of the file's operations, because it would make a payment."""
    entries = {entry.name: entry for entry in file.entries("operations")}
    for policy in policies:
        for inquiry in policy.inquiries:
            made = next((other for other in policies if _is_call_of(other, inquiry)), None)
            if made is not None:
                entry = entries[policy.operation]
                found = f"found {inquiry.method} {template_text(inquiry.path)}, a call of '{made.operation}'"
                allowed = "allowed: what moves and makes nothing"
                file.problems.add(entry.location, f"{entry.path}.{inquiry.name}.request", f"{found}, {allowed}")


def _is_call_of(policy: Policy, inquiry: Inquiry) -> bool:
    segments = tuple(template_text(inquiry.path).removeprefix("/").split("/"))  # a placeholder stands for some segment
    if inquiry.method != "POST" or all(route.match("POST", segments) is None for route in policy.routes):
        return False
    body: dict[str, Any] = {}
    for path, value in inquiry.body:
        place = body
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = template_text(value)
    return policy.where is None or bool(policy.where(body))
