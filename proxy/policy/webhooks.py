"""The `webhook` block: how the provider's events are checked, read and matched, as `core.notice.NoticeRules`.

Checking signatures belongs to another room. This one knows the names of the schemes and what each may be told, so that
a wrong word is found when the file is read and not when an event comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from proxy.core.classify import Expression, Row
from proxy.core.notice import Finder, HeaderPart, NoticeRules
from proxy.policy.document import ListNode, MapNode, TextNode
from proxy.policy.expressions import expression
from proxy.policy.inquiries import check_answer_name
from proxy.policy.marks import did_you_mean, listed
from proxy.policy.rows import Tables, read_rows
from proxy.policy.scalars import Reader, Wrong, boolean, duration, environment, header_name, text, word_of
from proxy.policy.schema import WEBHOOK
from proxy.policy.section import Entry, Section, entries_of, read_text

_HMAC_OPTIONS = ("header", "encoding", "prefix", "timestamp_header", "signed")
SCHEMES: Mapping[str, tuple[str, ...]] = {  # scheme -> what it may be told
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
REQUIRED: Mapping[str, tuple[str, ...]] = {"square": ("url",), "dlocal": ("login",)}  # of a scheme's options
HINT_ONLY = ("unsigned", "midtrans")  # what these prove is too little to be evidence
_UNSIGNED = "unsigned"
_TOLERANCE_S = 300.0
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")  # it stands in the address that events are sent to
_PLACES = re.compile(r"\{[^{}]*\}")
_URL, _URLS_MAX = re.compile(r"https?://[\x21-\x7e]{1,2000}\Z"), 20
_LOGIN = re.compile(r"[\x21-\x7e]{1,200}\Z")
_HEADER = "header:"


def read_webhook(
    file: Section, answers: Mapping[str, tuple[Row, ...]], tables: Tables, *, stamped: bool
) -> NoticeRules | None:
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
        section.problems.add(section.mark, section.at("secrets"), found)
    if not hint and not any(section.has(key) for key in ("answer", "answer_by", "read")):
        found = "found none of 'answer', 'answer_by' and 'read', allowed: one, to say what an event means"
        section.problems.add(section.mark, section.path, found)
    if section.has("answer") and section.has("answer_by"):
        section.add("answer_by", "found beside 'answer', allowed: one of them")
    rules = NoticeRules(
        scheme=scheme,
        options=options,
        secrets=secrets,
        event_id=_read_event_id(section),
        find=_read_finders(section, stamped=stamped),
        tolerance_s=section.read_or("tolerance", duration(1, 86400), _TOLERANCE_S),
        events=section.read("events", expression),
        at=section.read("at", expression),
        answers=answers,
        answer=check_answer_name(section, "answer", answers),
        answer_by=section.read("answer_by", expression),
        read=read_rows(section, "read", tables),
        account=section.read("account", expression),
        reply=section.read_or("reply", text, ""),
        refuse_with=int(section.read_or("refuse_with", word_of("401", "403", "498"), "401")),
        relay=section.read("relay", _address),
        hint=hint,
    )
    return rules if section.problems.count == before else None


def only_hints(file: Section) -> bool:
    """Whether the file's events are no evidence."""
    block = file.node("webhook")
    hint = block.entries.get("hint") if isinstance(block, MapNode) else None
    return isinstance(hint, TextNode) and hint.text == "true"


def scheme_of(file: Section) -> str | None:
    """The scheme by which the file's events are evidence, whether or not the rest of it can be read. None: there are no
    events, or they only hint."""
    block = file.node("webhook")
    node = block.entries.get("scheme") if isinstance(block, MapNode) else None
    if only_hints(file):
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
            section.add("scheme", f"found {name!r}, allowed: one of {listed(SCHEMES)}{did_you_mean(name, SCHEMES)}")
        elif not isinstance(node.entries[name], MapNode):
            section.add("scheme", "found a scheme without options, allowed: {NAME: {option: value}}, or NAME alone")
        else:
            options = _read_options(section, name, node.entries[name])
    else:
        name = section.read_or("scheme", word_of(*SCHEMES), "")
    for option in REQUIRED.get(name, ()):
        if option not in options:
            section.add("scheme", f"found '{name}' without the option '{option}', it is required")
    return name, options


def _read_options(section: Section, scheme: str, node: object) -> Mapping[str, str]:
    options: dict[str, str] = {}
    if not isinstance(node, MapNode):
        return options
    allowed = SCHEMES[scheme]
    for entry in entries_of(node, f"{section.at('scheme')}.{scheme}"):
        if entry.name not in allowed:
            known = listed(allowed) or "none"
            found = f"found an unknown option, allowed: {known}{did_you_mean(entry.name, allowed)}"
            section.problems.add(entry.mark, entry.path, found)
        else:
            value = read_text(entry.node, entry.path, "text", _OPTION_READERS[entry.name], section.problems)
            if value is not None:
                options[entry.name] = value
    if allowed == _HMAC_OPTIONS:
        _check_signed(section, options)
    return options


def _prefix(value: str) -> str:
    if not value.isascii() or (value and not value.isprintable()) or set(value) & set(", "):
        raise Wrong("visible ASCII characters without commas and spaces")
    return value


def _urls(value: str) -> str:
    """Or the variable that holds them: where a sidecar is reached differs by where it runs."""
    urls = value.split()
    if value.startswith("env:"):
        return f"env:{environment(value)}"
    if not 1 <= len(urls) <= _URLS_MAX or not all(map(_URL.match, urls)):
        raise Wrong("the address as it is registered at the provider, such as https://shop.test/hooks, or env:NAME")
    return value


def _login(value: str) -> str:
    if value.startswith("env:"):
        return f"env:{environment(value)}"
    if not _LOGIN.match(value):
        raise Wrong("your X-Login at the provider, or env:NAME")
    return value


_OPTION_READERS: Mapping[str, Reader[str]] = {
    "header": header_name,
    "encoding": word_of("hex", "base64"),
    "prefix": _prefix,
    "timestamp_header": header_name,  # or none, which is a header's name as well
    "signed": text,
    "body": word_of("json", "form"),
    "environment": word_of("live", "sandbox"),
    "url": _urls,
    "login": _login,
}


def _check_signed(section: Section, options: Mapping[str, str]) -> None:
    """What is signed holds the body, and the time where there is one: an unsigned time could be changed on the way."""
    timed = options.get("timestamp_header") != "none"
    signed = options.get("signed")
    if signed is not None:
        wanted = ["{body}", "{timestamp}"] if timed else ["{body}"]
        between = _PLACES.sub("", signed)
        if sorted(_PLACES.findall(signed)) != wanted or "{" in between or "}" in between:
            section.add("scheme", f"found 'signed' as {signed!r}, allowed: text with {' and '.join(wanted)}, once each")
    header = options.get("header", "Webhook-Signature")
    if timed and options.get("timestamp_header", "Webhook-Timestamp").lower() == header.lower():
        section.add("scheme", f"found {header!r} for both 'header' and 'timestamp_header', allowed: two headers")


def _check_hint(section: Section, scheme: str, *, hint: bool) -> None:
    if scheme in HINT_ONLY and not hint:
        found = (
            f"found none, it is required of '{scheme}': true. Such an event proves too little to be more than a hint"
        )
        section.problems.add(section.mark, section.at("hint"), found)
    if scheme == _UNSIGNED and section.has("secrets"):
        section.add("secrets", f"found beside '{_UNSIGNED}', allowed: none, there is nothing to check with them")
    if scheme == _UNSIGNED and section.has("relay"):
        section.add("relay", f"found beside '{_UNSIGNED}', allowed: none, nothing of such a delivery is kept")


def _read_event_id(section: Section) -> tuple[Expression | HeaderPart, ...]:
    def part(value: str) -> Expression | HeaderPart:
        if value.startswith(_HEADER):
            return HeaderPart(header_name(value.removeprefix(_HEADER)))
        return expression(value)

    parts = section.read_list("event_id", part, single=True)
    if parts and section.has("events") and all(isinstance(read, HeaderPart) for read in parts):
        section.add("event_id", "found only headers beside 'events', allowed: also a part in the event itself")
    return parts


def _read_secrets(section: Section) -> Mapping[str, tuple[str, ...]]:
    """A list, or a list for each account."""
    node = section.node("secrets")
    if not isinstance(node, MapNode):
        found = section.read_list("secrets", environment)
        return {"": found} if found else {}
    by_account = {}
    if not node.entries:
        section.add("secrets", "found nothing, allowed: a list of env:NAME, or such a list for each account")
    for entry in entries_of(node, section.at("secrets")):
        if not _ACCOUNT.match(entry.name):
            allowed = "letters, digits, '.', '_' and '-', at most 100: it stands in the address that events are sent to"
            section.problems.add(entry.mark, entry.path, f"found no name of an account, allowed: {allowed}")
        by_account[entry.name] = _names_in(section, entry)
    return by_account


def _names_in(section: Section, entry: Entry) -> tuple[str, ...]:
    if not isinstance(entry.node, ListNode) or not entry.node.items:
        section.problems.add(entry.node.mark, entry.path, "found no list, allowed: a list of env:NAME")
        return ()
    read = [
        read_text(item, f"{entry.path}[{index}]", "env:NAME", environment, section.problems)
        for index, item in enumerate(entry.node.items)
    ]
    return tuple(name for name in read if name is not None)


def _read_finders(section: Section, *, stamped: bool) -> tuple[tuple[Finder, Expression], ...]:
    node = section.node("find")
    if not isinstance(node, ListNode):
        if node is not None:
            section.add("find", "found no list, allowed: a list of {what: expression}")
        return ()
    names = [str(finder) for finder in Finder]
    found: list[tuple[Finder, Expression]] = []
    for index, item in enumerate(node.items):
        path = f"{section.at('find')}[{index}]"
        if not isinstance(item, MapNode) or len(item.entries) != 1:
            allowed = f"allowed: one of {listed(names)} and an expression"
            section.problems.add(item.mark, path, f"found no single pair, {allowed}")
            continue
        what, value = next(iter(item.entries.items()))
        if what not in names:
            said = f"found {what!r}, allowed: {listed(names)}{did_you_mean(what, names)}"
            section.problems.add(item.mark, path, said)
        place = read_text(value, f"{path}.{what}", "a JMESPath expression", expression, section.problems)
        if what in names and place is not None:
            found.append((Finder(what), place))
        if what == Finder.OPERATION_ID and not stamped:
            section.problems.warn(item.mark, path, "looks for the operation's id, which no 'stamp' puts there")
    if not node.items:
        section.add("find", "found an empty list, allowed: at least one {what: expression}")
    return tuple(found)


def _address(value: str) -> str:
    """Where events are told again: the service's own address."""
    allowed = "an address such as http://127.0.0.1:8080/webhooks, without user or fragment"
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise Wrong(allowed) from None
    unfit = not value.isascii() or not value.isprintable() or " " in value or "#" in value or parts.username is not None
    if unfit or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Wrong(allowed)
    return value
