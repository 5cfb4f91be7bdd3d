"""Blocks that are read and checked whole, and not in force yet: budget, circuit, webhook, fallback, credentials.

They are checked all the same, so that a file which loads today also loads when they act.
"""

from __future__ import annotations

from collections.abc import Collection

from proxy.policy.document import MapNode, TextNode
from proxy.policy.expressions import expression
from proxy.policy.inquiries import check_answer_name
from proxy.policy.marks import did_you_mean, listed
from proxy.policy.rows import Tables, read_rows
from proxy.policy.scalars import (
    Wrong,
    duration,
    environment,
    header_name,
    name,
    percentage,
    route,
    text,
    whole,
    word_of,
)
from proxy.policy.schema import BUDGET, CIRCUIT, CREDENTIALS, DEGRADE_AT, FALLBACK, OAUTH2, OPEN_AT, SCOPE, WEBHOOK
from proxy.policy.section import Section, message, read_text

_SCHEMES = (
    "hmac_sha256",
    "hmac_sha512",
    "standard",
    "stripe",
    "adyen",
    "paypal",
    "square",
    "checkout",
    "mollie",
    "gocardless",
    "razorpay",
    "braintree",
    "paystack",
)
_FINDERS = ("operation_id", "provider_key", "client_key", "reference", "intent")


def read_budget(file: Section) -> None:
    section = file.child("budget", BUDGET)
    if section is None:
        return
    section.read("window", duration(1, 3600))
    section.read("per_intent", whole(0, 100))
    for key in ("provider", "operation", "account", "failure_class"):
        scope = section.child(key, SCOPE)
        if scope is None:
            continue
        scope.read("floor", whole(0, 100_000))
        ratio = scope.read("ratio", percentage(200))
        ceiling = scope.read("ceiling", percentage(200))
        if ratio is not None and ceiling is not None and ratio > ceiling:
            scope.add("ratio", f"found {ratio:.0%}, allowed: at most the ceiling of {ceiling:.0%}")


def read_circuit(file: Section) -> None:
    section = file.child("circuit", CIRCUIT)
    if section is None:
        return
    section.read("window", duration(1, 3600))
    section.read("minimum", whole(1, 100_000))
    section.read("slow_after", duration(0.05, 600))
    shares: dict[str, dict[str, float]] = {}
    for key, block in (("open_at", OPEN_AT), ("degrade_at", DEGRADE_AT)):
        inner = section.child(key, block)
        if inner is not None:
            found = {share: inner.read(share, percentage(100)) for share in block.keys}
            shares[key] = {share: value for share, value in found.items() if value is not None}
    for share, value in shares.get("degrade_at", {}).items():
        if value > shares.get("open_at", {}).get(share, 1.0):
            section.add("degrade_at", f"found a higher '{share}' than in 'open_at', allowed: at most that")


def read_credentials(file: Section) -> None:
    section = file.child("credentials", CREDENTIALS)
    if section is None:
        return
    for entry in section.entries("header"):
        try:
            header_name(entry.name)
        except Wrong as wrong:
            section.problems.add(entry.mark, entry.path, message(entry.name, wrong))
        read_text(entry.node, entry.path, "env:NAME", environment, section.problems)
    oauth2 = section.child("oauth2", OAUTH2)
    if oauth2 is not None:
        oauth2.read("token", route)
        oauth2.read("client_id", environment)
        oauth2.read("client_secret", environment)
        oauth2.read("scope", text)
    if not section.has("header") and not section.has("oauth2"):
        section.problems.add(section.mark, section.path, "found neither 'header' nor 'oauth2', allowed: one or both")


def read_webhook(file: Section, answers: Collection[str], tables: Tables, *, stamped: bool) -> None:
    section = file.child("webhook", WEBHOOK)
    if section is None:
        return
    _read_scheme(section)
    section.read_list("secrets", environment)
    section.read("tolerance", duration(1, 86400))
    section.read("events", expression)
    section.read_list("event_id", expression, single=True)
    section.read("at", expression)
    check_answer_name(section, "answer", answers)
    section.read("answer_by", expression)
    read_rows(section, "read", tables)
    section.read("reply", text)
    _read_finders(section, stamped=stamped)
    readers = [key for key in ("answer", "answer_by", "read") if section.has(key)]
    if not readers:
        found = "found none of 'answer', 'answer_by' and 'read', allowed: one, to say what an event means"
        section.problems.add(section.mark, section.path, found)


def _read_scheme(section: Section) -> None:
    """`stripe`, or `{stripe: {its options}}`; a scheme checks its own options when it acts."""
    node = section.node("scheme")
    if not isinstance(node, MapNode):
        section.read("scheme", word_of(*_SCHEMES))
        return
    if len(node.entries) != 1 or next(iter(node.entries)) not in _SCHEMES:
        found = next(iter(node.entries), "")
        section.add("scheme", f"found {found!r}, allowed: one of {listed(_SCHEMES)}{did_you_mean(found, _SCHEMES)}")
    elif not isinstance(next(iter(node.entries.values())), MapNode):
        section.add("scheme", "found a scheme without options, allowed: {NAME: {option: value}}, or NAME alone")


def _read_finders(section: Section, *, stamped: bool) -> None:
    node = section.node("find")
    if node is None or isinstance(node, (TextNode, MapNode)):
        if node is not None:
            section.add("find", "found no list, allowed: a list of {what: expression}")
        return
    for index, item in enumerate(node.items):
        path = f"{section.at('find')}[{index}]"
        if not isinstance(item, MapNode) or len(item.entries) != 1:
            allowed = f"allowed: one of {listed(_FINDERS)} and an expression"
            section.problems.add(item.mark, path, f"found no single pair, {allowed}")
            continue
        what, value = next(iter(item.entries.items()))
        if what not in _FINDERS:
            found = f"found {what!r}, allowed: {listed(_FINDERS)}{did_you_mean(what, _FINDERS)}"
            section.problems.add(item.mark, path, found)
        read_text(value, f"{path}.{what}", "a JMESPath expression", expression, section.problems)
        if what == "operation_id" and not stamped:
            section.problems.warn(item.mark, path, "looks for the operation's id, which no 'stamp' puts there")


def read_fallback(file: Section, *, own_name: str, can_be_asked: bool) -> tuple[str, ...]:
    """The names of the providers to fall back to."""
    targets = []
    for section in file.children("fallback", FALLBACK):
        target = section.read("to", name)
        when = section.read_list("when", word_of("not_sent", "circuit_open", "rate_limited", "absent"))
        if target == own_name:
            section.add("to", f"found '{target}', which is this provider, allowed: another one")
        elif target is not None:
            targets.append(target)
        if "absent" in when:
            _check_absent(file, section, can_be_asked=can_be_asked)
    return tuple(targets)


def _check_absent(file: Section, section: Section, *, can_be_asked: bool) -> None:
    resolve = file.node("resolve")
    if not (isinstance(resolve, MapNode) and "settle" in resolve.entries):
        section.add("when", "found 'absent', which needs 'resolve.settle': from when on absence may be believed")
    if not can_be_asked:
        section.add("when", "found 'absent', which needs an operation with 'ask': nobody could say that it is absent")
