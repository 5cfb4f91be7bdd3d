"""`ask` and `cancel`: our own requests about an operation. They must be able to name it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from paywitness.core import policy_defaults
from paywitness.core.classify import Expression, ResponseRule
from paywitness.core.credential_and_hop_headers import CREDENTIAL_HEADERS
from paywitness.core.inquiry import BelongsFields, Cancel, Inquiry
from paywitness.core.provider_contract import FieldRef
from paywitness.core.template import Placeholder, Template
from paywitness.policy.block_parsers.response_rules import Tables, read_rows
from paywitness.policy.reading.document import MapNode, Node, TextNode
from paywitness.policy.reading.expressions import condition, expression
from paywitness.policy.reading.locations import FileProblems, did_you_mean, listed, quoted
from paywitness.policy.reading.section import Layers, Section, SectionEntry, entries_of, read_text
from paywitness.policy.reading.templates import (
    expression_template,
    identifies_operation,
    identifies_operation_uniquely,
    request_template,
    template,
)
from paywitness.policy.reading.value_readers import choice_of, duration, text, whole_number
from paywitness.policy.schema import ASK, BELONGS, CANCEL

# Framing and connection headers are the proxy's; credentials come from the caller or the environment.
_HEADERS_NOT_SETTABLE = frozenset(
    {"host", "content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive", "te", "trailer"}
    | {"upgrade", "expect", "proxy-authorization", "proxy-authenticate", "cookie"}
    | {name.decode() for name in CREDENTIAL_HEADERS}
)
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class PlaceholderSources:
    """The sources of placeholders for one operation, and the values with which a response can be compared."""

    parameters: frozenset[str]  # those of every match
    answers: Mapping[str, tuple[ResponseRule, ...]]
    has_amount: bool
    has_currency: bool
    has_reference: bool
    send_as: FieldRef | None
    stamp: FieldRef | None
    fits_amount: bool
    amount_at: str  # its place in the request
    acts_on: tuple[FieldRef, ...]  # the places in the request that name the object, or the payment, that it acts on
    reference: Expression | None  # the place of the reference in the response
    fits_stamp: Expression | None  # the place of our stamp in the response
    owns_reference: bool  # no other operation has the same reference


def check_answer_name(section: Section, key: str, answers: Collection[str]) -> str | None:
    """The name under the key, if `answers` has an object of that name."""
    name = section.read(key, text)
    if name is None or name in answers:
        return name
    known = f"allowed: {listed(answers)}" if answers else "and there is none under 'answers'"
    section.add_problem(key, f"found {quoted(name)}, {known}{did_you_mean(name, answers)}")
    return None


def check_settable_header(entry: SectionEntry, problems: FileProblems) -> None:
    """Check that a policy may set this header."""
    lowered = entry.name.lower()
    if lowered in _HEADERS_NOT_SETTABLE or lowered.startswith("paywitness-"):
        problems.add(entry.location, entry.path, f"found {entry.name}, which a policy cannot set")


def read_inquiries(operation: Section, known: PlaceholderSources) -> tuple[Inquiry, ...]:
    """The inquiries of the operation, in the order in which to try them."""
    sections = operation.children("ask", ASK)
    belongs = operation.child("belongs", BELONGS)
    if belongs is not None and not operation.has("ask"):
        operation.add_problem("belongs", "found without 'ask': no inquiry finds an object")
    read = (_read_inquiry(f"ask[{index}]", section, belongs, known) for index, section in enumerate(sections))
    return tuple(inquiry for inquiry in read if inquiry is not None)


def _read_inquiry(
    name: str, section: Section, operation_belongs: Section | None, known: PlaceholderSources
) -> Inquiry | None:
    before = section.problems.count
    request = section.read("request", request_template(known.parameters, "GET", "POST"))
    query = _read_query(section, known)
    node = section.node("body")
    body = _read_body(section, node, section.key_path("body"), (), known) if node is not None else []
    if request is not None and (request.method == "POST") != (node is not None):
        found = f"found {request.method} {'with' if node is not None else 'without'} 'body'"
        section.add_problem("request", f"{found}, allowed: a GET without it, a POST with it")
    headers = section.headers("headers")
    for entry, _ in headers:
        check_settable_header(entry, section.problems)
    at = section.read("at", expression_template(known.parameters))
    answer = check_answer_name(section, "answer", known.answers)
    used = [value for _, value in (*query, *body)]
    used += _used(section, "request", request.path if request is not None else None, known)
    used += _used(section, "at", at.template if at is not None else None, known)
    needs_reference = _read_needs(section, known)
    more = section.read("more", condition)
    always_lists = section.read("always_lists", expression)
    if always_lists is not None and not section.has("at"):
        section.add_problem(
            "always_lists", "found without 'at', which says what is looked for in the list: the answer is no list"
        )
    lag_s = section.read_or("lag", duration(0, 7 * _DAY_S), policy_defaults.ASK_LAG_S)
    misses = section.read_or("misses", whole_number(1, 10), policy_defaults.ASK_MISSES)
    whole_page = request.path if request is not None and at is None else None
    belongs = _read_belongs(section.child("belongs", BELONGS), operation_belongs, used, known, whole_page)
    if section.problems.count > before or request is None or answer is None:
        return None
    _check_identifies_operation(section, used, known)
    return Inquiry(
        name=name,
        path=request.path,
        answers=known.answers[answer],
        method=request.method,
        needs_reference=needs_reference,
        query=query,
        body=tuple(body),
        headers=tuple((entry.name, value) for entry, value in headers),
        at=at,
        more=more,
        always_lists=always_lists,
        lag_s=lag_s,
        misses=misses,
        belongs=belongs,
        shared=_finds_what_others_share(used, known),
    )


def _finds_what_others_share(used: list[Template], known: PlaceholderSources) -> bool:
    """Whether other operations, or earlier ones, may find the same object by the names in the inquiry."""
    own = {"operation_id", "provider_key", *(["reference"] if known.owns_reference else [])}
    return not any(blank.head in own for value in used for blank in value.placeholders)


def check_belongs(section: Section, *, has_key: bool, has_stamp: bool) -> None:
    """Check that `belongs` names something, and nothing that the provider never saw."""
    if not any(section.has(key) for key in section.block.keys):
        section.problems.add(
            section.location,
            section.path,
            f"found nothing in it, allowed: at least one of {listed(section.block.keys)}",
        )
    if section.has("key") and not has_key:
        section.add_problem("key", "found without 'idempotency.send_as': the provider never saw the key")
    if section.has("stamp") and not has_stamp:
        section.add_problem("stamp", "found without 'stamp', which puts it into the request: the provider never saw it")


def _read_belongs(
    own: Section | None,
    operation_belongs: Section | None,
    used: list[Template],
    known: PlaceholderSources,
    whole_page: Template | None,
) -> BelongsFields:
    """The inquiry's own fields, else the operation's, as far as there is a value to compare them with. If neither has
    any, the page of a reference (`whole_page` is its path) shows that reference at the place that the response has for
    it."""
    layers = Layers(own, operation_belongs)
    stamp = layers.read("stamp", expression) or known.fits_stamp
    if not layers.sections:
        is_page = whole_page is not None and whole_page.parts[-1] == Placeholder("reference")
        asked = Template((Placeholder("reference"),)) if is_page and known.reference is not None else None
        return BelongsFields(reference=known.reference if asked is not None else None, stamp=stamp, asked=asked)
    for section in layers.sections:
        check_belongs(section, has_key=known.send_as is not None, has_stamp=known.stamp is not None)
    asked = _asked_for(used, known.acts_on)
    if own is not None and own.has("reference") and asked is None:
        own.add_problem(
            "reference",
            "found in an inquiry that names neither {reference} nor what the operation acts on ('target', 'payment'): "
            "there is nothing to hold it against",
        )
    return BelongsFields(
        reference=layers.read("reference", expression) if asked is not None else None,
        key=layers.read("key", expression),
        stamp=stamp,
        asked=asked if layers.having("reference") is not None else None,
        denied_at=layers.read("denied_at", expression),
    )


def _asked_for(used: list[Template], acts_on: tuple[FieldRef, ...]) -> Template | None:
    """The name in an inquiry: the provider's reference, else the object that the operation acts on."""
    blanks = [blank for value in used for blank in value.placeholders]
    wanted = [Placeholder("reference"), *(Placeholder(str(place.kind), place.name) for place in acts_on)]
    for place in wanted:
        found = next((blank for blank in blanks if (blank.head, blank.name) == (place.head, place.name)), None)
        if found is not None:
            return Template((found,))
    return None


def _read_query(section: Section, known: PlaceholderSources) -> tuple[tuple[str, Template], ...]:
    found = []
    for entry in section.entries("query"):
        value = read_text(entry.node, entry.path, "a value", template(known.parameters), section.problems)
        if value is not None:
            found.append((entry.name, value))
            _check_available(section, value, known, entry.node, entry.path)
    return tuple(found)


def _check_identifies_operation(section: Section, used: list[Template], known: PlaceholderSources) -> None:
    """Check that an inquiry names the operation. If its name may fit other operations too, the amount must tell them
    apart."""
    if not any(identifies_operation(value) for value in used):
        section.problems.add(
            section.location,
            section.path,
            "found an inquiry that cannot name the operation, allowed: at least one of {reference}, {provider_key}, "
            "{client_key}, {operation_id}, {path:...}, {body:...} in 'request', 'query', 'body' or 'at'",
        )
        return
    lists = section.has("query") or section.has("at")
    compares_amount = any(blank.name == known.amount_at for value in used for blank in value.placeholders if blank.name)
    told_apart = known.fits_amount or compares_amount
    if lists and not any(identifies_operation_uniquely(value) for value in used) and not told_apart:
        section.problems.warn(
            section.location,
            section.path,
            "looks for a value that other operations may share, and no 'fits.amount' tells them apart: another payment "
            "of the same order could be taken for this one; look for {operation_id}, {provider_key} or {reference}",
        )


def read_cancel(operation: Section, known: PlaceholderSources, tables: Tables) -> Cancel | None:
    section = operation.child("cancel", CANCEL)
    if section is None:
        return None
    before = section.problems.count
    request = section.read("request", request_template(known.parameters, "POST", "PUT", "PATCH", "DELETE"))
    used = _used(section, "request", request.path if request is not None else None, known)
    node = section.node("body")
    body = _read_body(section, node, section.key_path("body"), (), known) if node is not None else []
    rows = read_rows(section, "read", tables)
    needs_reference = _read_needs(section, known)
    when = section.read_or("when", choice_of("operator", "schedule_ran_out"), "operator")
    if section.problems.count > before or request is None:
        return None
    if not any(identifies_operation(value) for value in (*used, *(value for _, value in body))):
        section.add_problem(
            "request", "found a cancel that cannot name the operation, allowed: a placeholder that does"
        )
    if not any(row.result_class in {"cancelled", "pending"} and not row.observe for row in rows):
        section.add_problem(
            "read", "found no row that reads 'cancelled' (or 'pending'): it could never close the operation"
        )
    return Cancel(
        method=request.method,
        path=request.path,
        read=rows,
        needs_reference=needs_reference,
        body=tuple(body),
        when_schedule_ran_out=when == "schedule_ran_out",
    )


def _read_body(
    section: Section, node: Node, path: str, place: tuple[str, ...], known: PlaceholderSources
) -> list[tuple[tuple[str, ...], Template]]:
    """Each text of the body, with its path."""
    if isinstance(node, MapNode):
        found = []
        for entry in entries_of(node, path):
            found += _read_body(section, entry.node, entry.path, (*place, entry.name), known)
        return found
    if not isinstance(node, TextNode) or not place:
        section.problems.add(node.location, path, "found no mapping, allowed: a mapping of texts with placeholders")
        return []
    value = read_text(node, path, "text with placeholders", template(known.parameters), section.problems)
    if value is None:
        return []
    _check_available(section, value, known, node, path)
    return [(place, value)]


def _used(section: Section, key: str, value: Template | None, known: PlaceholderSources) -> list[Template]:
    node = section.node(key)
    if value is None or node is None:
        return []
    _check_available(section, value, known, node, section.key_path(key))
    return [value]


def _check_available(section: Section, value: Template, known: PlaceholderSources, node: Node, path: str) -> None:
    """Report placeholders that this operation or this provider cannot fill."""
    lacks = {
        "reference": _missing_reference(section, known),
        "amount": "" if known.has_amount else "'amount' in the operation",
        "currency": "" if known.has_currency else "'currency' in the operation",
        "provider_key": "" if known.send_as else "'idempotency.send_as': without it the provider never saw the key",
        "operation_id": "" if known.stamp else "'stamp': without it the provider never saw the id",
    }
    for blank in value.placeholders:
        lack = lacks.get(blank.head, "")
        if lack:
            section.problems.add(node.location, path, f"found {{{blank.head}}}, which needs {lack}")


def _missing_reference(section: Section, known: PlaceholderSources) -> str:
    if section.has("needs"):
        return ""  # `needs` is checked on its own
    if not known.has_reference:
        return "'reference' in the operation: where the answer shows it"
    if section.block is ASK:
        return "'needs: reference' beside it: not every operation in doubt has one"
    return ""


def _read_needs(section: Section, known: PlaceholderSources) -> bool:
    needed = section.read("needs", choice_of("reference")) is not None
    if needed and not known.has_reference:
        section.add_problem(
            "needs", "found 'reference', which needs 'reference' in the operation: where the answer shows it"
        )
    return needed
