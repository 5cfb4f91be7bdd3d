"""The `webhook` block: how the provider's events are checked, read and matched, as `core.webhook_event.WebhookRules`.

Another room checks signatures. This module has the names of the schemes and their options, so that a wrong name is
found when the file is read and not when an event comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from paywitness.core import policy_defaults
from paywitness.core.classify import Expression, ResponseRule
from paywitness.core.webhook_event import EventBelongsFields, EventIdHeader, MatchKey, WebhookRules
from paywitness.policy.block_parsers.inquiries import check_answer_name, check_belongs
from paywitness.policy.block_parsers.response_rules import Tables, read_rows
from paywitness.policy.reading.document import ListNode, MapNode, TextNode
from paywitness.policy.reading.expressions import expression
from paywitness.policy.reading.locations import did_you_mean, listed
from paywitness.policy.reading.section import Section, SectionEntry, entries_of, read_text
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    Reader,
    boolean,
    choice_of,
    duration,
    environment_variable,
    header_name,
    text,
)
from paywitness.policy.schema import BELONGS, WEBHOOK

_HMAC_OPTIONS = ("header", "encoding", "prefix", "timestamp_header", "signed")
SCHEMES: Mapping[str, tuple[str, ...]] = {  # scheme -> its options
    "hmac_sha256": _HMAC_OPTIONS,
    "hmac_sha512": _HMAC_OPTIONS,
    "token": ("header",),
    "unsigned": ("body",),
    "standard": (),
    "stripe": (),
    "adyen": (),
    "paypal": ("environment",),
    "square": ("url",),
    "checkout": (),
    "gocardless": (),
    "razorpay": (),
    "paystack": (),
    "mollie": (),
    "authorizenet": (),
    "coinbase": (),
    "braintree": (),
    "worldpay": (),
    "wise": (),
    "xendit": (),
    "flutterwave": (),
    "midtrans": (),
    "dlocal": ("login",),
}
# Options that a scheme must have.
REQUIRED_OPTIONS: Mapping[str, tuple[str, ...]] = {"square": ("url",), "dlocal": ("login",)}
HINT_ONLY = ("unsigned", "midtrans")  # their proof is too weak for evidence
_UNSIGNED = "unsigned"
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")  # it is part of the address that events are sent to
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_URL, _URLS_MAX = re.compile(r"https?://[\x21-\x7e]{1,2000}\Z"), 20
_LOGIN = re.compile(r"[\x21-\x7e]{1,200}\Z")
_HEADER = "header:"


def read_webhook(
    file: Section, answers: Mapping[str, tuple[ResponseRule, ...]], tables: Tables, *, stamped: bool
) -> WebhookRules | None:
    section = file.child("webhook", WEBHOOK)
    if section is None:
        return None
    before = section.problems.count
    scheme, options = _read_scheme(section)
    secrets = _read_secrets(section)
    hint = section.read_or("hint", boolean, default=False)
    _check_hint(section, scheme, hint=hint)
    if scheme == _UNSIGNED:
        secrets = {"": ()}
    elif scheme in SCHEMES and not section.has("secrets"):
        found = "found nothing, it is required: a list of env:NAME. Without it every event would be refused"
        section.problems.add(section.location, section.key_path("secrets"), found)
    if not hint and not any(section.has(key) for key in ("answer", "answer_by", "read")):
        found = "found none of 'answer', 'answer_by' and 'read', allowed: one, to say what an event means"
        section.problems.add(section.location, section.path, found)
    if section.has("answer") and section.has("answer_by"):
        section.add_problem("answer_by", "found beside 'answer', allowed: one of them")
    rules = WebhookRules(
        scheme=scheme,
        options=options,
        secrets=secrets,
        event_id=_read_event_id(section),
        find=_read_match_keys(section, stamped=stamped),
        belongs=_read_belongs(section, stamped=stamped),
        tolerance_s=section.read_or("tolerance", duration(1, 86400), policy_defaults.WEBHOOK_TOLERANCE_S),
        events=section.read("events", expression),
        at=section.read("at", expression),
        answers=answers,
        answer=check_answer_name(section, "answer", answers),
        answer_by=section.read("answer_by", expression),
        read=read_rows(section, "read", tables, of_event=True),
        account=section.read("account", expression),
        payment=section.read("payment", expression),
        occurred_at=section.read("occurred_at", expression),
        reply=section.read_or("reply", text, ""),
        refuse_with=int(
            section.read_or("refuse_with", choice_of("401", "403", "498"), str(policy_defaults.WEBHOOK_REFUSE_WITH))
        ),
        relay=section.read("relay", _relay_url),
        hint=hint,
    )
    return rules if section.problems.count == before else None


def webhook_is_hint(file: Section) -> bool:
    """Whether the file's events are only hints, and no evidence."""
    block = file.node("webhook")
    hint = block.entries.get("hint") if isinstance(block, MapNode) else None
    return isinstance(hint, TextNode) and hint.text == "true"


def evidence_scheme(file: Section) -> str | None:
    """The scheme that makes the file's events evidence, even if the rest of the block cannot be read. None: there are
    no events, or they only hint."""
    block = file.node("webhook")
    node = block.entries.get("scheme") if isinstance(block, MapNode) else None
    if webhook_is_hint(file):
        return None
    if isinstance(node, MapNode):
        return next(iter(node.entries), None)
    return node.text if isinstance(node, TextNode) else None


def _read_scheme(section: Section) -> tuple[str, Mapping[str, str]]:
    """`stripe`, or `{hmac_sha256: {its options}}`."""
    node = section.node("scheme")
    options: Mapping[str, str] = {}
    if isinstance(node, MapNode):
        name = next(iter(node.entries), "")
        if len(node.entries) != 1 or name not in SCHEMES:
            section.add_problem(
                "scheme", f"found {name!r}, allowed: one of {listed(SCHEMES)}{did_you_mean(name, SCHEMES)}"
            )
        elif not isinstance(node.entries[name], MapNode):
            section.add_problem(
                "scheme", "found a scheme without options, allowed: {NAME: {option: value}}, or NAME alone"
            )
        else:
            options = _read_options(section, name, node.entries[name])
    else:
        name = section.read_or("scheme", choice_of(*SCHEMES), "")
    for option in REQUIRED_OPTIONS.get(name, ()):
        if option not in options:
            section.add_problem("scheme", f"found '{name}' without the option '{option}', it is required")
    return name, options


def _read_options(section: Section, scheme: str, node: object) -> Mapping[str, str]:
    options: dict[str, str] = {}
    if not isinstance(node, MapNode):
        return options
    allowed = SCHEMES[scheme]
    for entry in entries_of(node, f"{section.key_path('scheme')}.{scheme}"):
        if entry.name not in allowed:
            known = listed(allowed) or "none"
            found = f"found an unknown option, allowed: {known}{did_you_mean(entry.name, allowed)}"
            section.problems.add(entry.location, entry.path, found)
        else:
            value = read_text(entry.node, entry.path, "text", _OPTION_READERS[entry.name], section.problems)
            if value is not None:
                options[entry.name] = value
    if allowed == _HMAC_OPTIONS:
        _check_signed(section, options)
    return options


def _prefix(value: str) -> str:
    if not value.isascii() or (value and not value.isprintable()) or set(value) & set(", "):
        raise InvalidValue("visible ASCII characters without commas and spaces")
    return value


def _urls(value: str) -> str:
    """The registered addresses, or the variable with them, because each sidecar may be reached by another address."""
    urls = value.split()
    if value.startswith("env:"):
        return f"env:{environment_variable(value)}"
    if not 1 <= len(urls) <= _URLS_MAX or not all(map(_URL.match, urls)):
        raise InvalidValue(
            "the address as it is registered at the provider, such as https://shop.test/hooks, or env:NAME"
        )
    return value


def _login(value: str) -> str:
    if value.startswith("env:"):
        return f"env:{environment_variable(value)}"
    if not _LOGIN.match(value):
        raise InvalidValue("your X-Login at the provider, or env:NAME")
    return value


_OPTION_READERS: Mapping[str, Reader[str]] = {
    "header": header_name,
    "encoding": choice_of("hex", "base64"),
    "prefix": _prefix,
    "timestamp_header": header_name,  # `none` is allowed too, and is also a valid header name
    "signed": text,
    "body": choice_of("json", "form"),
    "environment": choice_of("live", "sandbox"),
    "url": _urls,
    "login": _login,
}


def _check_signed(section: Section, options: Mapping[str, str]) -> None:
    """Check that the signed text holds the body, and the timestamp if there is one. Otherwise the timestamp could be
    changed on the way."""
    timed = options.get("timestamp_header") != "none"
    signed = options.get("signed")
    if signed is not None:
        wanted = ["{body}", "{timestamp}"] if timed else ["{body}"]
        between = _PLACEHOLDER.sub("", signed)
        if sorted(_PLACEHOLDER.findall(signed)) != wanted or "{" in between or "}" in between:
            section.add_problem(
                "scheme", f"found 'signed' as {signed!r}, allowed: text with {' and '.join(wanted)}, once each"
            )
    header = options.get("header", policy_defaults.WEBHOOK_SIGNATURE_HEADER)
    timestamp_header = options.get("timestamp_header", policy_defaults.WEBHOOK_TIMESTAMP_HEADER)
    if timed and timestamp_header.lower() == header.lower():
        section.add_problem(
            "scheme", f"found {header!r} for both 'header' and 'timestamp_header', allowed: two headers"
        )


def _check_hint(section: Section, scheme: str, *, hint: bool) -> None:
    if scheme in HINT_ONLY and not hint:
        found = (
            f"found none, it is required of '{scheme}': true. Such an event proves too little to be more than a hint"
        )
        section.problems.add(section.location, section.key_path("hint"), found)
    if scheme == _UNSIGNED and section.has("secrets"):
        section.add_problem(
            "secrets", f"found beside '{_UNSIGNED}', allowed: none, there is nothing to check with them"
        )
    if scheme == _UNSIGNED and section.has("relay"):
        section.add_problem("relay", f"found beside '{_UNSIGNED}', allowed: none, nothing of such a webhook is stored")


def _read_event_id(section: Section) -> tuple[Expression | EventIdHeader, ...]:
    def part(value: str) -> Expression | EventIdHeader:
        if value.startswith(_HEADER):
            return EventIdHeader(header_name(value.removeprefix(_HEADER)))
        return expression(value)

    parts = section.read_list("event_id", part, single=True)
    if parts and section.has("events") and all(isinstance(read, EventIdHeader) for read in parts):
        section.add_problem("event_id", "found only headers beside 'events', allowed: also a part in the event itself")
    return parts


def _read_secrets(section: Section) -> Mapping[str, tuple[str, ...]]:
    """The names of the secrets: one list, or a list for each account."""
    node = section.node("secrets")
    if not isinstance(node, MapNode):
        found = section.read_list("secrets", environment_variable)
        return {"": found} if found else {}
    by_account = {}
    if not node.entries:
        section.add_problem("secrets", "found nothing, allowed: a list of env:NAME, or such a list for each account")
    for entry in entries_of(node, section.key_path("secrets")):
        if not _ACCOUNT.match(entry.name):
            allowed = "letters, digits, '.', '_' and '-', at most 100: it stands in the address that events are sent to"
            section.problems.add(entry.location, entry.path, f"found no name of an account, allowed: {allowed}")
        by_account[entry.name] = _secret_names(section, entry)
    return by_account


def _secret_names(section: Section, entry: SectionEntry) -> tuple[str, ...]:
    if not isinstance(entry.node, ListNode) or not entry.node.items:
        section.problems.add(entry.node.location, entry.path, "found no list, allowed: a list of env:NAME")
        return ()
    read = [
        read_text(item, f"{entry.path}[{index}]", "env:NAME", environment_variable, section.problems)
        for index, item in enumerate(entry.node.items)
    ]
    return tuple(name for name in read if name is not None)


def _read_match_keys(section: Section, *, stamped: bool) -> tuple[tuple[MatchKey, Expression], ...]:
    node = section.node("find")
    if not isinstance(node, ListNode):
        if node is not None:
            section.add_problem("find", "found no list, allowed: a list of {what: expression}")
        return ()
    names = [str(finder) for finder in MatchKey]
    found: list[tuple[MatchKey, Expression]] = []
    for index, item in enumerate(node.items):
        path = f"{section.key_path('find')}[{index}]"
        if not isinstance(item, MapNode) or len(item.entries) != 1:
            allowed = f"allowed: one of {listed(names)} and an expression"
            section.problems.add(item.location, path, f"found no single pair, {allowed}")
            continue
        what, value = next(iter(item.entries.items()))
        if what not in names:
            said = f"found {what!r}, allowed: {listed(names)}{did_you_mean(what, names)}"
            section.problems.add(item.location, path, said)
        place = read_text(value, f"{path}.{what}", "a JMESPath expression", expression, section.problems)
        if what in names and place is not None:
            found.append((MatchKey(what), place))
        if what == MatchKey.OPERATION_ID and not stamped:
            section.problems.warn(item.location, path, "looks for the operation's id, which no 'stamp' puts there")
    if not node.items:
        section.add_problem("find", "found an empty list, allowed: at least one {what: expression}")
    return tuple(found)


def _read_belongs(section: Section, *, stamped: bool) -> EventBelongsFields:
    belongs = section.child("belongs", BELONGS)
    if belongs is None:
        return EventBelongsFields()
    check_belongs(belongs, has_key=True, has_stamp=stamped)
    if belongs.has("denied_at"):
        belongs.add_problem(
            "denied_at", "found in a webhook, allowed: in 'ask'. A denial of a shared object is asked about"
        )
    return EventBelongsFields(
        reference=belongs.read("reference", expression),
        key=belongs.read("key", expression),
        stamp=belongs.read("stamp", expression),
    )


def _relay_url(value: str) -> str:
    """The service's own address, to which events are relayed."""
    allowed = "an address such as http://127.0.0.1:8080/webhooks, without user or fragment"
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise InvalidValue(allowed) from None
    unfit = not value.isascii() or not value.isprintable() or " " in value or "#" in value or parts.username is not None
    if unfit or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidValue(allowed)
    return value
