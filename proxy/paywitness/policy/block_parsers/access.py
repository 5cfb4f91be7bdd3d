"""The blocks `credentials`, `who_am_i`, `accounts` and `tls`, and the key `private`: how to reach a provider, how to
authenticate, how the provider names the owner of a credential, and which accounts exist.

For credentials the file has only the names of environment variables. Whether a variable is set concerns the running
process, not the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import urlencode

from paywitness.core.account_rules import BackgroundCredentials, NamedAccount, OAuth2, WhoAmI
from paywitness.core.policy import UpstreamTrust
from paywitness.core.provider_contract import FieldKind, FieldRef
from paywitness.policy.reading.document import ListNode
from paywitness.policy.reading.expressions import expression
from paywitness.policy.reading.section import Section, invalid_value_message, read_text, section_of
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    boolean,
    environment_variable,
    header_name,
    header_value,
    name,
    route,
    text,
)
from paywitness.policy.schema import CREDENTIALS, NAMED_ACCOUNT, OAUTH2, TLS, WHO_AM_I


def read_credentials(file: Section) -> BackgroundCredentials | None:
    section = file.child("credentials", CREDENTIALS)
    return _credentials(section) if section is not None else None


def _credentials(section: Section) -> BackgroundCredentials:
    headers = []
    for entry in section.entries("header"):
        try:
            header_name(entry.name)
        except InvalidValue as invalid:
            section.problems.add(entry.location, entry.path, invalid_value_message(entry.name, invalid))
        variable = read_text(entry.node, entry.path, "env:NAME", environment_variable, section.problems)
        if variable is not None:
            headers.append((entry.name, variable))
    if not section.has("header") and not section.has("oauth2"):
        section.problems.add(
            section.location, section.path, "found neither 'header' nor 'oauth2', allowed: one or both"
        )
    oauth2 = section.child("oauth2", OAUTH2)
    return BackgroundCredentials(tuple(headers), _read_oauth2(oauth2) if oauth2 is not None else None)


def _read_oauth2(section: Section) -> OAuth2 | None:
    token = section.read("token", route)
    client_id, client_secret = (
        section.read("client_id", environment_variable),
        section.read("client_secret", environment_variable),
    )
    scope = section.read_or("scope", text, "")
    if token is not None and any(segment.startswith("{") for segment in token.segments):
        section.add_problem("token", f"found '{token}', allowed: a path without placeholders")
    if token is None or client_id is None or client_secret is None:
        return None
    return OAuth2(token.method, "/" + "/".join(token.segments), client_id, client_secret, scope)


def read_who_am_i(file: Section) -> WhoAmI | None:
    section = file.child("who_am_i", WHO_AM_I)
    if section is None:
        return None
    request, field = section.read("request", route), section.read("field", expression)
    if request is not None and (request.method != "GET" or any(part.startswith("{") for part in request.segments)):
        section.add_problem("request", f"found '{request}', allowed: GET and a path without placeholders")
    pairs = []
    for entry in section.entries("query"):
        value = read_text(entry.node, entry.path, "text", text, section.problems)
        if value is not None:
            pairs.append((entry.name, value))
    if request is None or field is None:
        return None
    query = f"?{urlencode(pairs)}" if pairs else ""
    return WhoAmI(request.method, "/" + "/".join(request.segments) + query, field)


# --- Accounts


def read_accounts(file: Section, places: tuple[FieldRef, ...], *, many: bool) -> tuple[NamedAccount, ...]:
    """`accounts:`. Each account must be distinguishable from the others."""
    found: list[NamedAccount] = []
    for entry in file.entries("accounts"):
        section = section_of(entry, NAMED_ACCOUNT, file.problems)
        if section is None:
            continue
        account = _read_account(entry.name, section, places)
        try:
            name(entry.name)
        except InvalidValue as invalid:
            section.problems.add(entry.location, entry.path, invalid_value_message(entry.name, invalid))
        for problem in _confusions(account, found, many=many):
            section.problems.add(entry.location, entry.path, problem)
        if account.owner and not file.has("who_am_i") and not (account.selectors or account.credentials):
            section.add_problem("owner", "found no other key that names the account, allowed: with 'who_am_i'")
        found.append(account)
    return tuple(found)


def _read_account(own_name: str, section: Section, places: tuple[FieldRef, ...]) -> NamedAccount:
    account = NamedAccount(
        own_name,
        section.read_or("merchant", name, ""),
        section.read_or("owner", header_value, ""),
        tuple(_read_selectors(section, places)),
        tuple(_read_listed(section)),
    )
    if not (section.has("owner") or section.has("selectors") or section.has("credentials")):
        allowed = "one or more of owner, selectors, credentials"
        section.problems.add(
            section.location, section.path, f"found nothing that names the account, allowed: {allowed}"
        )
    return account


def _read_selectors(section: Section, places: tuple[FieldRef, ...]) -> Iterator[tuple[FieldRef, str]]:
    selecting = {str(place): place for place in places if place.kind is not FieldKind.CONST}
    for entry in section.entries("selectors"):
        value = read_text(entry.node, entry.path, "the value that names the account", text, section.problems)
        if entry.name not in selecting:
            allowed = f"what 'account' lists: {', '.join(selecting)}" if selecting else "none: 'account' is a constant"
            section.problems.add(entry.location, entry.path, f"found '{entry.name[:60]}', allowed: {allowed}")
        elif value is not None:
            yield selecting[entry.name], value


def _read_listed(section: Section) -> Iterator[BackgroundCredentials]:
    if isinstance(section.node("credentials"), ListNode):
        yield from map(_credentials, section.children("credentials", CREDENTIALS))
    elif (found := read_credentials(section)) is not None:
        yield found


def _confusions(account: NamedAccount, others: Iterable[NamedAccount], *, many: bool) -> Iterator[str]:
    """Reasons why a call of the account might be taken for one of another account."""
    for other in others:
        if account.selectors and other.selectors:
            theirs = dict(other.selectors)
            if all(theirs.get(place, value) == value for place, value in account.selectors):
                yield f"found selectors that a call of '{other.name}' may have too, allowed: another value for each"
        elif not account.selectors and not other.selectors:
            if not many:
                found = f"found an account without selectors, as '{other.name}' is"
                yield f"{found}, allowed: one of these, or several with 'merchants: many'"
            if account.owner and account.owner == other.owner:
                yield f"found the owner '{account.owner}', which '{other.name}' has too, allowed: an owner of its own"
            for variable in sorted(set(account.variables) & set(other.variables)):
                yield f"found env:{variable}, which '{other.name}' lists too, allowed: credentials of its own"


# --- TLS


def read_trust(file: Section) -> UpstreamTrust:
    private = file.read_or("private", boolean, False)
    section = file.child("tls", TLS)
    if section is None:
        return UpstreamTrust(private=private)
    found = UpstreamTrust(
        section.read_or("roots", _pem, ""),
        section.read_or("certificate", _pem, ""),
        section.read_or("key", _pem, ""),
        private,
    )
    if found.key and not found.certificate:
        section.add_problem(
            "key", "found a key without a certificate, allowed: both, or a certificate that holds its key"
        )
    return found


def _pem(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise InvalidValue("the full path of a PEM file, such as /etc/paywitness/acme.pem")
    return value
