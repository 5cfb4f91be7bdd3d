"""One operation of a file: its block, with what the provider's level says merged in, as a `core.policy.Policy`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from proxy.core.body import Encoding
from proxy.core.budget import BudgetRules
from proxy.core.classify import ClassifyRules, Fit, Row
from proxy.core.contract import Kind, Place, PlaceKind, ProviderContract
from proxy.core.money import Unit
from proxy.core.operation import Again
from proxy.core.policy import AmountPlace, Credentials, Policy, Route, Trust
from proxy.core.priority import PriorityRule
from proxy.core.template import Template
from proxy.policy.contracts import NO_PLACE, KeyRules, key_place_or_none, read_key_rules
from proxy.policy.document import MapNode, TextNode, json_value
from proxy.policy.expressions import expression, expression_over
from proxy.policy.fallbacks import FallbackEntry, can_fall_back
from proxy.policy.inquiries import Known, check_answer_name, check_forced, read_cancel, read_inquiries
from proxy.policy.marks import listed
from proxy.policy.pacing import read_resolve, read_retry, read_timeouts
from proxy.policy.priorities import read_priorities
from proxy.policy.rows import Tables, can_read_a_success
from proxy.policy.scalars import (
    Wrong,
    body_path,
    name,
    one_of,
    parameters_of,
    place,
    route,
    word_of,
)
from proxy.policy.schema import AMOUNT, FITS, IDEMPOTENCY, OPERATION, RESOLVE, TIMEOUTS
from proxy.policy.section import Entry, Layers, Section, message, section_of
from proxy.policy.templates import link_template


@dataclass(frozen=True, slots=True)
class Shared:
    """What the file's level gives to all of its operations."""

    file: Section
    name: str
    key_name: str
    revision: str
    upstream: str
    trust: Trust
    encoding: Encoding
    account: tuple[Place, ...]
    merchant: str
    tables: Tables
    answers: dict[str, tuple[Row, ...]]
    classify: tuple[Row, ...]
    rows_are_whole: bool  # False where a row could not be read: what the others leave out proves nothing
    credentials: Credentials | None
    fallbacks: tuple[FallbackEntry, ...]
    hears_events: bool  # there is a webhook whose signatures can be checked
    hears_hints: bool  # there is one, and its events only hint
    observe: bool
    budget: BudgetRules
    priorities: tuple[PriorityRule, ...]


def read_operation(entry: Entry, shared: Shared) -> Policy | None:
    """The operation's policy, or None where its block cannot be used; why is among the problems."""
    problems = shared.file.problems
    _check_name(entry, shared)
    section = section_of(entry, OPERATION, problems)
    if section is None:
        return None
    before = problems.count
    kind = section.read_or("kind", one_of(Kind), Kind.NONE)
    routes = section.read_list("match", route, single=True)
    keys = read_key_rules(_layers(section, shared, "idempotency"), moves_money=kind.moves_money)
    stamp = _read_stamp(section, shared)
    known = _known(section, shared, routes, keys, stamp)
    timeouts = read_timeouts(_layers(section, shared, "timeouts"))
    inquiries = read_inquiries(section, known)
    contract = _contract(section, shared, keys, can_be_asked=bool(inquiries))
    retry_default, retry = read_retry(section, shared.file)
    over_body = expression_over(shared.encoding)
    has_money = section.has("amount") and section.has("currency")
    problem = shared.file.node("problem")
    policy = Policy(
        provider=shared.name,
        operation=entry.name,
        kind=kind,
        routes=routes,
        contract=contract,
        classify=_classify_rules(section, shared, kind, stamp),
        revision=shared.revision,
        upstream=shared.upstream,
        trust=shared.trust,
        encoding=shared.encoding,
        where=section.read("where", over_body),
        account=shared.account,
        take_from=keys.take_from,
        key_required=keys.required,
        names=(shared.key_name, section.read_or("formerly", name, entry.name)),
        stamp=stamp,
        ignore=(*shared.file.read_list("ignore", body_path), *section.read_list("ignore", body_path)),
        never_store=(*shared.file.read_list("never_store", body_path), *section.read_list("never_store", body_path)),
        amount=_read_amount(section),
        currency=section.read("currency", expression),
        intent=section.read("intent", expression),
        target=section.read("target", place(PlaceKind.PATH, PlaceKind.BODY, PlaceKind.HEADER)),
        merchant=shared.merchant,
        after_success=section.read_or("after_success", one_of(Again), Again.FLAG),
        during_action=section.read_or("during_action", one_of(Again), Again.FLAG),
        timeouts=timeouts,
        retry=retry,
        retry_default=retry_default,
        resolve=read_resolve(_layers(section, shared, "resolve"), contract, timeouts, entry.name),
        problem=json_value(problem) if problem is not None else None,
        give_up_headers=_read_headers(section, shared, "give_up_headers"),
        headers=_read_headers(section, shared, "headers"),
        inquiries=inquiries,
        cancel=read_cancel(section, known, shared.tables),
        as_response=section.read("as_response", expression),
        dashboard=_read_dashboard(section, shared, known),
        credentials=shared.credentials,
        observe=shared.observe,
        budget=shared.budget,
        priorities=(*read_priorities(section, over_body, has_money=has_money), *shared.priorities),
    )
    if can_fall_back(policy):
        policy = replace(policy, fallbacks=tuple(entry.fallback for entry in shared.fallbacks))
    _check_path_places(section, shared, policy, known.parameters)
    if problems.count == before:
        _check_success(section, shared, policy)
    return policy if problems.count == before else None


_BLOCKS = {"idempotency": IDEMPOTENCY, "timeouts": TIMEOUTS, "resolve": RESOLVE}


def _layers(section: Section, shared: Shared, key: str) -> Layers:
    return Layers(section.child(key, _BLOCKS[key]), shared.file.child(key, _BLOCKS[key]))


def _check_name(entry: Entry, shared: Shared) -> None:
    try:
        name(entry.name)
    except Wrong as wrong:
        shared.file.problems.add(entry.mark, entry.path, message(entry.name, wrong))


def _read_stamp(section: Section, shared: Shared) -> Place | None:
    found = Layers(section, shared.file).read("stamp", key_place_or_none)
    return None if found is NO_PLACE else found


def _read_dashboard(section: Section, shared: Shared, known: Known) -> Template | None:
    """The operation's own link, else the provider's. What it cannot fill in for an operation makes no link there."""
    own = section.read("dashboard", link_template(known.parameters))
    return own or shared.file.read("dashboard", link_template(frozenset()))


def _known(section: Section, shared: Shared, routes: tuple[Route, ...], keys: KeyRules, stamp: Place | None) -> Known:
    parameters = [parameters_of(found) for found in routes]
    return Known(
        parameters=frozenset.intersection(*parameters) if parameters else frozenset(),
        answers=shared.answers,
        has_amount=section.has("amount"),
        has_currency=section.has("currency"),
        has_reference=section.has("reference"),
        send_as=keys.send_as,
        stamp=stamp,
        fits_amount=_gives_fit(section, "amount"),
        amount_at=_text_under(section, "amount", "at"),
    )


def _text_under(section: Section, key: str, name: str) -> str:
    node = section.node(key)
    found = node.entries.get(name) if isinstance(node, MapNode) else None
    return found.text if isinstance(found, TextNode) else ""


def _gives_fit(section: Section, key: str) -> bool:
    node = section.node("fits")
    return isinstance(node, MapNode) and key in node.entries


def _contract(section: Section, shared: Shared, keys: KeyRules, *, can_be_asked: bool) -> ProviderContract:
    told_by_no_event = section.read("webhook", word_of("none")) is not None
    return ProviderContract(
        send_as=keys.send_as,
        window_s=keys.window_s,
        errors_under_key=keys.errors_under_key,
        max_length=keys.max_length,
        min_length=keys.min_length,
        characters=keys.characters,
        key_space_is_account=keys.key_space_is_account,
        can_be_asked=can_be_asked,
        webhook_expected=shared.hears_events and not told_by_no_event,
        webhook_hints=shared.hears_hints and not told_by_no_event and can_be_asked,
        assumed=keys.assumed,
    )


def _classify_rules(section: Section, shared: Shared, kind: Kind, stamp: Place | None) -> ClassifyRules:
    answer = check_answer_name(section, "answer", shared.answers)
    return ClassifyRules(
        rows=shared.classify,
        answers=shared.answers[answer] if answer is not None else (),
        reference=section.read("reference", expression),
        fit=_read_fit(section, stamp),
        moves_money=kind.moves_money,
        encoding=shared.encoding,
    )


def _read_amount(section: Section) -> AmountPlace | None:
    amount = section.child("amount", AMOUNT)
    if amount is None:
        return None
    at = amount.read("at", expression)
    unit = amount.read_or("unit", one_of(Unit), Unit.MINOR)
    absent_is_full = amount.read("absent", word_of("full")) is not None
    return AmountPlace(at, unit, absent_is_full) if at is not None else None


def _read_fit(section: Section, stamp: Place | None) -> Fit:
    fits = section.child("fits", FITS)
    if fits is None:
        return Fit()
    nothing = "there is nothing to hold the answer against"
    if fits.has("amount") and not fits.has("unit"):
        fits.problems.add(fits.mark, fits.at("unit"), "found nothing beside 'amount', it is required: minor or major")
    for key in ("amount", "currency"):
        lacking = [needed for needed in ("amount", "currency") if not section.has(needed)]
        if fits.has(key) and lacking:
            fits.add(key, f"found without '{lacking[0]}' in the operation: {nothing}")
    if fits.has("stamp") and stamp is None:
        fits.add("stamp", f"found without 'stamp', which puts it into the request: {nothing}")
    return Fit(
        amount=fits.read("amount", expression),
        unit=fits.read_or("unit", one_of(Unit), Unit.MINOR),
        currency=fits.read("currency", expression),
        stamp=fits.read("stamp", expression),
    )


def _read_headers(section: Section, shared: Shared, key: str) -> tuple[tuple[str, str], ...]:
    """Headers of the provider's level and the operation's, which wins where both name one."""
    found: dict[str, tuple[str, str]] = {}
    for entry, value in (*shared.file.headers(key), *(section.headers(key) if key in OPERATION.keys else ())):
        check_forced(entry, shared.file.problems)
        found[entry.name.lower()] = (entry.name, value)
    return tuple(found.values())


def _check_path_places(section: Section, shared: Shared, policy: Policy, parameters: frozenset[str]) -> None:
    """`path:x` must be in every match, else some calls would lack it."""
    if not policy.routes:
        return
    allowed = f"allowed: {listed(sorted(parameters))}" if parameters else "and no parameter is"
    if policy.target is not None and policy.target.kind is PlaceKind.PATH and policy.target.name not in parameters:
        section.add("target", f"found 'path:{policy.target.name}', which is not in every 'match', {allowed}")
    sources = Layers(section.child("idempotency", IDEMPOTENCY), shared.file.child("idempotency", IDEMPOTENCY))
    for found in policy.take_from:
        if found.kind is PlaceKind.PATH and found.name not in parameters:
            sources.add("take_from", f"found '{found}', which is not in every 'match' of {policy.operation}, {allowed}")
    for found in policy.account:
        if found.kind is PlaceKind.PATH and found.name not in parameters:
            lack = f"which is not in every 'match' of {policy.operation}"
            shared.file.add("account", f"found '{found}', {lack}, {allowed}")


def _check_success(section: Section, shared: Shared, policy: Policy) -> None:
    """A money-moving operation of which nothing could ever be read as a success: every 2xx would be doubt."""
    if not shared.rows_are_whole or not policy.kind.moves_money:
        return
    if can_read_a_success((*policy.classify.rows, *policy.classify.answers)):
        return
    if section.has("answer"):
        section.add("answer", "found an object none of whose rows reads a success: every payment would stay in doubt")
    else:
        allowed = f"allowed: {listed(shared.answers)}" if shared.answers else "to be written under 'answers'"
        section.problems.add(
            section.mark,
            section.at("answer"),
            f"found nothing, it is required where money moves ({allowed}): else every 2xx would be doubt",
        )
