"""The `credentials` block: what background calls use when the caller's own credentials no longer do.

Only names of environment variables are read; whether one is set is a matter of the running process, not of the file.
"""

from __future__ import annotations

from proxy.core.policy import Credentials, OAuth2
from proxy.policy.scalars import Wrong, environment, header_name, route, text
from proxy.policy.schema import CREDENTIALS, OAUTH2
from proxy.policy.section import Section, message, read_text


def read_credentials(file: Section) -> Credentials | None:
    section = file.child("credentials", CREDENTIALS)
    if section is None:
        return None
    headers = []
    for entry in section.entries("header"):
        try:
            header_name(entry.name)
        except Wrong as wrong:
            section.problems.add(entry.mark, entry.path, message(entry.name, wrong))
        variable = read_text(entry.node, entry.path, "env:NAME", environment, section.problems)
        if variable is not None:
            headers.append((entry.name, variable))
    if not section.has("header") and not section.has("oauth2"):
        section.problems.add(section.mark, section.path, "found neither 'header' nor 'oauth2', allowed: one or both")
    oauth2 = section.child("oauth2", OAUTH2)
    return Credentials(tuple(headers), _read_oauth2(oauth2) if oauth2 is not None else None)


def _read_oauth2(section: Section) -> OAuth2 | None:
    token = section.read("token", route)
    client_id, client_secret = section.read("client_id", environment), section.read("client_secret", environment)
    scope = section.read_or("scope", text, "")
    if token is not None and any(segment.startswith("{") for segment in token.segments):
        section.add("token", f"found '{token}', allowed: a path without placeholders")
    if token is None or client_id is None or client_secret is None:
        return None
    return OAuth2(token.method, "/" + "/".join(token.segments), client_id, client_secret, scope)
