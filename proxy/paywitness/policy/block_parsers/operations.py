"""One operation of a file: its block, merged with the rules of the provider's level, as a `core.policy.Policy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paywitness.core import policy_defaults
from paywitness.core.account_rules import AccountRules, BackgroundCredentials
from paywitness.core.bodies.tree import Encoding
from paywitness.core.budget import BudgetRules
from paywitness.core.classify import ClassifyRules, ResponseMatcher, ResponseRule
from paywitness.core.holds import LimitedBy
from paywitness.core.money import Unit
from paywitness.core.operation import RepeatPaymentRule
from paywitness.core.payment import FOLLOW_UPS
from paywitness.core.payment_rules import PaymentRules
from paywitness.core.policy import (
    AmountField,
    ConnectionUse,
    Policy,
    PriorityRule,
    ResolutionRules,
    Route,
    Timeouts,
    UpstreamTrust,
)
from paywitness.core.provider_contract import FieldKind, FieldRef, OperationKind, ProviderContract
from paywitness.core.result import Advice
from paywitness.core.template import Template
from paywitness.policy.block_parsers.fallback import FallbackEntry, can_fall_back
from paywitness.policy.block_parsers.idempotency import NO_FIELD, KeyRules, key_field_or_none, read_key_rules
from paywitness.policy.block_parsers.inquiries import (
    PlaceholderSources,
    check_answer_name,
    check_settable_header,
    read_cancel,
    read_inquiries,
)
from paywitness.policy.block_parsers.limits import read_priorities
from paywitness.policy.block_parsers.payments import read_payment, read_target
from paywitness.policy.block_parsers.payouts import read_payout
from paywitness.policy.block_parsers.response_rules import Tables, can_read_a_success
from paywitness.policy.block_parsers.timing import read_resolve, read_retry, read_timeouts
from paywitness.policy.reading.document import MapNode, TextNode, json_value
from paywitness.policy.reading.expressions import condition_over, expression
from paywitness.policy.reading.locations import listed
from paywitness.policy.reading.section import Layers, Section, SectionEntry, invalid_value_message, section_of
from paywitness.policy.reading.templates import link_template
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    body_path,
    choice_of,
    name,
    one_of,
    parameters_of,
    route,
    whole_number,
)
from paywitness.policy.schema import AMOUNT, FITS, IDEMPOTENCY, OPERATION, RESOLVE, TIMEOUTS


@dataclass(frozen=True, slots=True)
class SharedRules:
    """The rules of the file's level, which all of its operations share."""

    file: Section
    name: str
    key_name: str
    revision: str
    upstream: str
    trust: UpstreamTrust
    connections: ConnectionUse
    encoding: Encoding
    account: tuple[FieldRef, ...]
    merchant: str
    tables: Tables
    advice_by_code: Mapping[str, Advice]
    answers: dict[str, tuple[ResponseRule, ...]]
    classify: tuple[ResponseRule, ...]
    all_rows_valid: bool  # False if a row could not be read: then no conclusion follows from a missing row
    credentials: BackgroundCredentials | None
    accounts: AccountRules
    fallbacks: tuple[FallbackEntry, ...]
    has_evidence_webhook: bool  # the file has a webhook with signatures that can be checked
    has_hint_webhook: bool  # the file has a webhook, and its events only hint
    observe: bool
    budget: BudgetRules
    limited_by: LimitedBy
    request_id_header: str
    priorities: tuple[PriorityRule, ...]


def read_operation(entry: SectionEntry, shared: SharedRules) -> Policy | None:
    """The operation's policy. None if its block cannot be used; the reason is among the problems."""
    problems = shared.file.problems
    section = section_of(entry, OPERATION, problems)
    if section is None:
        return None
    before = problems.count
    _check_name(entry, shared)
    kind = section.read_or("kind", one_of(OperationKind), OperationKind.NONE)
    routes = section.read_list("match", route, single=True)
    keys = read_key_rules(_layers(section, shared, "idempotency"), moves_money=kind.moves_money)
    stamp = _read_stamp(section, shared)
    target, *target_also = _read_targets(section, kind)
    payment = read_payment(section, shared.file, shared.encoding, target)
    classify = _classify_rules(section, shared, kind, stamp)
    known = _placeholder_sources(section, shared, routes, keys, classify, kind, target, payment)
    timeouts = read_timeouts(_layers(section, shared, "timeouts"))
    inquiries = read_inquiries(section, known)
    contract = _contract(section, shared, keys, can_be_asked=bool(inquiries))
    retry_default, retry = read_retry(section, shared.file)
    policy = Policy(
        provider=shared.name,
        operation=entry.name,
        kind=kind,
        routes=routes,
        contract=contract,
        classify=classify,
        revision=shared.revision,
        upstream=shared.upstream,
        trust=shared.trust,
        encoding=shared.encoding,
        where=section.read("where", condition_over(shared.encoding)),
        account=shared.account,
        take_from=keys.take_from,
        key_required=keys.required,
        names=(shared.key_name, section.read_or("formerly", name, entry.name)),
        stamp=stamp,
        stamp_keys_max=Layers(section, shared.file).read("stamp_keys_max", whole_number(1, 10_000)),
        ignore=_read_paths(section, shared, "ignore"),
        never_store=_read_paths(section, shared, "never_store"),
        amount=_read_amount(section),
        currency=section.read("currency", expression),
        intent=section.read("intent", expression),
        target=target,
        target_also=tuple(filter(None, target_also)),
        payment=payment,
        payout=read_payout(section, known.parameters),
        merchant=shared.merchant,
        after_success=_read_repeat_rule(section, "after_success", policy_defaults.AFTER_SUCCESS),
        during_action=_read_repeat_rule(section, "during_action", policy_defaults.DURING_ACTION),
        timeouts=timeouts,
        retry=retry,
        retry_default=retry_default,
        resolve=_read_resolve(section, shared, contract, timeouts, entry.name, kind),
        problem=_read_problem(shared),
        give_up_headers=_read_headers(section, shared, "give_up_headers"),
        headers=_read_headers(section, shared, "headers"),
        inquiries=inquiries,
        cancel=read_cancel(section, known, shared.tables),
        as_response=section.read("as_response", expression),
        dashboard=_read_dashboard(section, shared, known),
        credentials=shared.credentials,
        accounts=shared.accounts,
        observe=shared.observe,
        budget=shared.budget,
        priorities=_read_priorities(section, shared),
    )
    _check_path_fields(section, shared, policy, known.parameters)
    _check_success(section, shared, policy, before)
    return _with_provider_rules(policy, shared) if problems.count == before else None


def _with_provider_rules(policy: Policy, shared: SharedRules) -> Policy:
    """The policy with the rules that only the provider's level can have."""
    policy = replace(
        policy,
        connections=shared.connections,
        limited_by=shared.limited_by,
        request_id_header=shared.request_id_header,
        stamp_reserved=_read_reserved_stamp(shared),
    )
    if not can_fall_back(policy):
        return policy
    return replace(policy, fallbacks=tuple(entry.fallback for entry in shared.fallbacks))


def _read_resolve(
    section: Section,
    shared: SharedRules,
    contract: ProviderContract,
    timeouts: Timeouts,
    operation: str,
    kind: OperationKind,
) -> ResolutionRules:
    """The rules of `resolve`. The file's rule for customers who do not act applies to the operations that pay."""
    layers = _layers(section, shared, "resolve")
    own = layers.sections[0] if section.has("resolve") and layers.sections else None
    is_concerned = kind.pays or (own is not None and own.has("on_action_expired"))
    may_cancel = section.has("cancel") if is_concerned else None
    return read_resolve(layers, contract, timeouts, operation, may_cancel=may_cancel)


_BLOCKS = {"idempotency": IDEMPOTENCY, "timeouts": TIMEOUTS, "resolve": RESOLVE}


def _layers(section: Section, shared: SharedRules, key: str) -> Layers:
    return Layers(section.child(key, _BLOCKS[key]), shared.file.child(key, _BLOCKS[key]))


def _check_name(entry: SectionEntry, shared: SharedRules) -> None:
    try:
        name(entry.name)
    except InvalidValue as invalid:
        shared.file.problems.add(entry.location, entry.path, invalid_value_message(entry.name, invalid))


def _read_repeat_rule(section: Section, key: str, default: str) -> RepeatPaymentRule:
    return section.read_or(key, one_of(RepeatPaymentRule), RepeatPaymentRule(default))


def _read_reserved_stamp(shared: SharedRules) -> FieldRef | None:
    found = shared.file.read("stamp", key_field_or_none)
    return None if found is NO_FIELD else found


def _read_stamp(section: Section, shared: SharedRules) -> FieldRef | None:
    found = Layers(section, shared.file).read("stamp", key_field_or_none)
    return None if found is NO_FIELD else found


def _read_priorities(section: Section, shared: SharedRules) -> tuple[PriorityRule, ...]:
    has_money = section.has("amount") and section.has("currency")
    own = read_priorities(section, condition_over(shared.encoding), has_money=has_money)
    return (*own, *shared.priorities)


def _read_paths(section: Section, shared: SharedRules, key: str) -> tuple[str, ...]:
    """Body paths of the provider's level and of the operation."""
    return (*shared.file.read_list(key, body_path), *section.read_list(key, body_path))


def _read_problem(shared: SharedRules) -> dict[str, Any] | None:
    """The provider's error shape."""
    problem = shared.file.node("problem")
    return json_value(problem) if problem is not None else None


def _read_dashboard(section: Section, shared: SharedRules, known: PlaceholderSources) -> Template | None:
    """The operation's own link, else the provider's. If a link cannot be filled in for an operation, it has none."""
    own = section.read("dashboard", link_template(known.parameters))
    return own or shared.file.read("dashboard", link_template(frozenset()))


def _placeholder_sources(
    section: Section,
    shared: SharedRules,
    routes: tuple[Route, ...],
    keys: KeyRules,
    classify: ClassifyRules,
    kind: OperationKind,
    target: FieldRef | None,
    payment: PaymentRules,
) -> PlaceholderSources:
    acts_on = (*filter(None, [target]), *payment.acts_on)
    parameters = [parameters_of(found) for found in routes]
    return PlaceholderSources(
        parameters=frozenset.intersection(*parameters) if parameters else frozenset(),
        answers=shared.answers,
        has_amount=section.has("amount"),
        has_currency=section.has("currency"),
        has_reference=section.has("reference"),
        send_as=keys.send_as,
        stamp=_read_stamp(section, shared),
        fits_amount=_has_fit(section, "amount"),
        amount_at=_text_under(section, "amount", "at"),
        acts_on=acts_on,
        reference=classify.reference,
        fits_stamp=classify.fit.stamp,
        owns_reference=kind in FOLLOW_UPS or not (acts_on or payment.continues),
    )


def _text_under(section: Section, key: str, name: str) -> str:
    node = section.node(key)
    found = node.entries.get(name) if isinstance(node, MapNode) else None
    return found.text if isinstance(found, TextNode) else ""


def _has_fit(section: Section, key: str) -> bool:
    node = section.node("fits")
    return isinstance(node, MapNode) and key in node.entries


def _contract(section: Section, shared: SharedRules, keys: KeyRules, *, can_be_asked: bool) -> ProviderContract:
    told_by_no_event = section.read("webhook", choice_of("none")) is not None
    return ProviderContract(
        send_as=keys.send_as,
        window_s=keys.window_s,
        errors_under_key=keys.errors_under_key,
        max_length=keys.max_length,
        min_length=keys.min_length,
        characters=keys.characters,
        key_space_is_account=keys.key_space_is_account,
        supports_inquiry=can_be_asked,
        webhook_expected=shared.has_evidence_webhook and not told_by_no_event,
        webhook_hints=shared.has_hint_webhook and not told_by_no_event and can_be_asked,
        assumed=keys.assumed,
    )


def _classify_rules(
    section: Section, shared: SharedRules, kind: OperationKind, stamp: FieldRef | None
) -> ClassifyRules:
    answer = check_answer_name(section, "answer", shared.answers)
    return ClassifyRules(
        rows=shared.classify,
        answers=shared.answers[answer] if answer is not None else (),
        reference=section.read("reference", expression),
        fit=_read_fit(section, stamp, of_payment=kind in FOLLOW_UPS),
        moves_money=kind.moves_money,
        encoding=shared.encoding,
        advice_by_code=shared.advice_by_code,
    )


def _read_amount(section: Section) -> AmountField | None:
    amount = section.child("amount", AMOUNT)
    if amount is None:
        return None
    at = amount.read("at", expression)
    unit = amount.read_or("unit", one_of(Unit), Unit.MINOR)
    absent_is_full = amount.read("absent", choice_of("full")) is not None
    return AmountField(at, unit, absent_is_full) if at is not None else None


def _read_fit(section: Section, stamp: FieldRef | None, *, of_payment: bool) -> ResponseMatcher:
    shows_nothing = isinstance(section.node("fits"), TextNode) and section.read("fits", choice_of("none")) is not None
    fits = section.child("fits", FITS) if not shows_nothing else None
    if fits is None:
        return ResponseMatcher()
    nothing = "there is nothing to hold the answer against"
    if fits.has("amount") and not fits.has("unit"):
        fits.problems.add(
            fits.location, fits.key_path("unit"), "found nothing beside 'amount', it is required: minor or major"
        )
    for key in ("amount", "currency"):
        needed_keys = ("amount",) if of_payment else ("amount", "currency")  # the currency may be the payment's
        lacking = [needed for needed in needed_keys if not section.has(needed)]
        if fits.has(key) and lacking:
            fits.add_problem(key, f"found without '{lacking[0]}' in the operation: {nothing}")
    if fits.has("stamp") and stamp is None:
        fits.add_problem("stamp", f"found without 'stamp', which puts it into the request: {nothing}")
    return ResponseMatcher(
        amount=fits.read("amount", expression),
        unit=fits.read_or("unit", one_of(Unit), Unit.MINOR),
        currency=fits.read("currency", expression),
        stamp=fits.read("stamp", expression),
    )


def _read_targets(section: Section, kind: OperationKind) -> tuple[FieldRef | None, ...]:
    """The places of the object that the operation acts on; of a payout, all the places that make its reference."""
    targets = section.read_list("target", read_target, single=True)
    if len(targets) > 1 and kind is not OperationKind.PAYOUT:
        section.add_problem("target", f"found a list in an operation of kind {kind}, allowed: in one of kind payout")
    return targets or (None,)


def _read_headers(section: Section, shared: SharedRules, key: str) -> tuple[tuple[str, str], ...]:
    """Headers of the provider's level and of the operation. If both have one of that name, the operation's counts."""
    found: dict[str, tuple[str, str]] = {}
    for entry, value in (*shared.file.headers(key), *(section.headers(key) if key in OPERATION.keys else ())):
        check_settable_header(entry, shared.file.problems)
        found[entry.name.lower()] = (entry.name, value)
    return tuple(found.values())


def _check_path_fields(section: Section, shared: SharedRules, policy: Policy, parameters: frozenset[str]) -> None:
    """Check that `path:x` is in every match; otherwise some calls would lack it."""
    if not policy.routes:
        return
    allowed = f"allowed: {listed(sorted(parameters))}" if parameters else "and no parameter is"
    for found in (policy.target, *policy.target_also):
        if found is not None and found.kind is FieldKind.PATH and found.name not in parameters:
            section.add_problem("target", f"found '{found}', which is not in every 'match', {allowed}")
    for found in policy.payment.acts_on if section.has("payment") else ():
        if found.kind is FieldKind.PATH and found.name not in parameters:
            section.add_problem("payment", f"found '{found}', which is not in every 'match', {allowed}")
    sources = Layers(section.child("idempotency", IDEMPOTENCY), shared.file.child("idempotency", IDEMPOTENCY))
    for found in policy.take_from:
        if found.kind is FieldKind.PATH and found.name not in parameters:
            sources.add_problem("take_from", f"found '{found}', {_NOT_IN_MATCH}", operation=policy.operation)
    for found in policy.account:
        if found.kind is FieldKind.PATH and found.name not in parameters:
            shared.file.add_problem("account", f"found '{found}', {_NOT_IN_MATCH}", operation=policy.operation)


_NOT_IN_MATCH = "which is not in every 'match' of {operations}, allowed: a parameter that each of them has"


def _check_success(section: Section, shared: SharedRules, policy: Policy, problems_before: int) -> None:
    """Report a money-moving operation without a row that reads a success, because every 2xx would stay in doubt. An
    operation that already has problems is not checked."""
    has_problems = section.problems.count > problems_before
    if has_problems or not shared.all_rows_valid or not policy.kind.moves_money:
        return
    if can_read_a_success((*policy.classify.rows, *policy.classify.answers)):
        return
    if section.has("answer"):
        section.add_problem(
            "answer", "found an object none of whose rows reads a success: every payment would stay in doubt"
        )
    else:
        allowed = f"allowed: {listed(shared.answers)}" if shared.answers else "to be written under 'answers'"
        section.problems.add(
            section.location,
            section.key_path("answer"),
            f"found nothing, it is required if money moves ({allowed}): else every 2xx would be doubt",
        )
