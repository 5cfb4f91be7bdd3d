"""The blocks `credentials`, `who_am_i` and `tls`, and the key `private`: how a provider is reached, how we prove who we
are, and how it tells whose a credential is.

For credentials the file gives only the names of environment variables. Whether a variable is set is a matter of the
running process, not of the file.
"""

from __future__ import annotations

from urllib.parse import urlencode

from paywitness.core.account_rules import WhoAmI
from paywitness.core.policy import BackgroundCredentials, OAuth2, UpstreamTrust
from paywitness.policy.reading.expressions import expression
from paywitness.policy.reading.section import Section, invalid_value_message, read_text
from paywitness.policy.reading.value_readers import (
    InvalidValue,
    boolean,
    environment_variable,
    header_name,
    route,
    text,
)
from paywitness.policy.schema import CREDENTIALS, OAUTH2, TLS, WHO_AM_I


def read_credentials(file: Section) -> BackgroundCredentials | None:
    section = file.child("credentials", CREDENTIALS)
    if section is None:
        return None
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
