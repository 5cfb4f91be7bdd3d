"""`ask` and `cancel`: requests of our own about an operation, which they must be able to name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from proxy.core.contract import Place
from proxy.policy.document import MapNode, Node, TextNode
from proxy.policy.marks import did_you_mean, listed, shown
from proxy.policy.rows import Tables, read_rows
from proxy.policy.scalars import duration, text, whole, word_of
from proxy.policy.schema import ASK, CANCEL
from proxy.policy.section import Section, entries_of, read_text
from proxy.policy.templates import Template, expression_template, request_template, template

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Known:
    """What a placeholder can be filled from, for one operation."""

    parameters: frozenset[str]  # in every match
    answers: Collection[str]
    has_amount: bool
    has_currency: bool
    has_reference: bool
    send_as: Place | None
    stamp: Place | None


def check_answer_name(section: Section, key: str, answers: Collection[str]) -> str | None:
    """The name under the key, if it is one of an object under `answers`."""
    name = section.read(key, text)
    if name is None or name in answers:
        return name
    known = f"allowed: {listed(answers)}" if answers else "and there is none under 'answers'"
    section.add(key, f"found {shown(name)}, {known}{did_you_mean(name, answers)}")
    return None


def read_inquiries(operation: Section, known: Known) -> int:
    """How many ways there are to ask about the operation, each checked."""
    sections = operation.children("ask", ASK)
    for section in sections:
        _read_inquiry(section, known)
    return len(sections)


def _read_inquiry(section: Section, known: Known) -> None:
    before = section.problems.count
    used = []
    request = section.read("request", request_template(known.parameters, "GET"))
    used += _used(section, "request", request, known)
    for entry in section.entries("query"):
        value = read_text(entry.node, entry.path, "a value", template(known.parameters), section.problems)
        if value is not None:
            used.append(value)
            _check_available(section, value, known, entry.node, entry.path)
    at = section.read("at", expression_template(known.parameters))
    used += _used(section, "at", at, known)
    check_answer_name(section, "answer", known.answers)
    section.read("lag", duration(0, 7 * _DAY_S))
    section.read("misses", whole(1, 10))
    _check_needs(section, known)
    if section.problems.count == before and not any(value.names_the_operation for value in used):
        section.problems.add(
            section.mark,
            section.path,
            "found an inquiry that cannot name the operation, allowed: at least one of {reference}, {provider_key}, "
            "{client_key}, {operation_id}, {path:...}, {body:...} in 'request', 'query' or 'at'",
        )


def read_cancel(operation: Section, known: Known, tables: Tables) -> None:
    section = operation.child("cancel", CANCEL)
    if section is None:
        return
    before = section.problems.count
    request = section.read("request", request_template(known.parameters, "POST", "PUT", "PATCH", "DELETE"))
    used = _used(section, "request", request, known)
    body = section.node("body")
    if body is not None:
        used += _read_body(section, body, section.at("body"), known)
    rows = read_rows(section, "read", tables)
    _check_needs(section, known)
    if section.problems.count > before:
        return
    if not any(value.names_the_operation for value in used):
        section.add("request", "found a cancel that cannot name the operation, allowed: a placeholder that does")
    if not any(row.reading in {"cancelled", "pending"} for row in rows):
        section.add("read", "found no row that reads 'cancelled' (or 'pending'): it could never close the operation")


def _read_body(section: Section, node: Node, path: str, known: Known) -> list[Template]:
    if isinstance(node, MapNode):
        return [used for entry in entries_of(node, path) for used in _read_body(section, entry.node, entry.path, known)]
    if not isinstance(node, TextNode):
        section.problems.add(node.mark, path, "found a list, allowed: a mapping of texts with placeholders")
        return []
    value = read_text(node, path, "text with placeholders", template(known.parameters), section.problems)
    if value is None:
        return []
    _check_available(section, value, known, node, path)
    return [value]


def _used(section: Section, key: str, value: Template | None, known: Known) -> list[Template]:
    node = section.node(key)
    if value is None or node is None:
        return []
    _check_available(section, value, known, node, section.at(key))
    return [value]


def _check_available(section: Section, value: Template, known: Known, node: Node, path: str) -> None:
    """A placeholder that this operation, or this provider, cannot fill."""
    lacks = {
        "reference": _lack_of_reference(section, known),
        "amount": "" if known.has_amount else "'amount' in the operation",
        "currency": "" if known.has_currency else "'currency' in the operation",
        "provider_key": "" if known.send_as else "'idempotency.send_as': without it the provider never saw the key",
        "operation_id": "" if known.stamp else "'stamp': without it the provider never saw the id",
    }
    for head, _ in value.placeholders:
        lack = lacks.get(head, "")
        if lack:
            section.problems.add(node.mark, path, f"found {{{head}}}, which needs {lack}")


def _lack_of_reference(section: Section, known: Known) -> str:
    if section.has("needs"):
        return ""  # what that needs is checked with it
    if not known.has_reference:
        return "'reference' in the operation: where the answer shows it"
    if section.block is ASK:
        return "'needs: reference' beside it: not every operation in doubt has one"
    return ""


def _check_needs(section: Section, known: Known) -> None:
    if section.read("needs", word_of("reference")) is not None and not known.has_reference:
        section.add("needs", "found 'reference', which needs 'reference' in the operation: where the answer shows it")
