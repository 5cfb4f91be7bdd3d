"""How a provider is reached and known: the roots that may vouch for it, our certificate for it, private addresses."""

from __future__ import annotations

from proxy.core.policy import Trust
from proxy.policy.scalars import Wrong, boolean
from proxy.policy.schema import TLS
from proxy.policy.section import Section


def read_trust(file: Section) -> Trust:
    private = file.read_or("private", boolean, False)
    section = file.child("tls", TLS)
    if section is None:
        return Trust(private=private)
    found = Trust(
        section.read_or("roots", _pem, ""),
        section.read_or("certificate", _pem, ""),
        section.read_or("key", _pem, ""),
        private,
    )
    if found.key and not found.certificate:
        section.add("key", "found a key without a certificate, allowed: both, or a certificate that holds its key")
    return found


def _pem(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise Wrong("the full path of a PEM file, such as /etc/paywitness/acme.pem")
    return value
