"""PayPal: `PAYPAL-TRANSMISSION-SIG`, base64 RSA-SHA256 over `<transmission id>|<time>|<webhook id>|<CRC-32 of the
body>`.

A "secret" is a webhook's id, because the signed text names the webhook that it was sent to. `PAYPAL-CERT-URL` names the
certificate. It may point only to PayPal's own hosts, which serve it over TLS. The chain of trust is this TLS connection
with the system's roots. The certificate must carry PayPal's name and be valid now. The engine fetches it.

A CRC is no digest: anybody who has seen one genuine webhook can make another body with the same CRC. So the time must
be within the policy's tolerance. PayPal calls it the time of the transmission. That every retry has a new one is
UNVERIFIED.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from zlib import crc32

from paywitness.core.call import Headers
from paywitness.webhook_signatures.rsa import parse_certificate, verify_rsa
from paywitness.webhook_signatures.scheme import (
    SchemeOption,
    SignatureCheck,
    SignatureVerdict,
    check_age,
    check_from_matches,
    decode_or_empty,
    malformed,
    single_header,
)

_ID, _TIME, _SIGNATURE = b"PAYPAL-TRANSMISSION-ID", b"PAYPAL-TRANSMISSION-TIME", b"PAYPAL-TRANSMISSION-SIG"
_CERTIFICATE_URL, _ALGORITHM = b"PAYPAL-CERT-URL", b"PAYPAL-AUTH-ALGO"
_HOSTS = {
    "live": ("api.paypal.com", "api-m.paypal.com"),
    "sandbox": ("api.sandbox.paypal.com", "api-m.sandbox.paypal.com"),
}
_PATH = re.compile(r"/v1/notifications/certs/[A-Za-z0-9_-]{1,200}")  # no dot, no slash, no query: only a name
_TRANSMISSION = re.compile(rb"[\x21-\x7b\x7d\x7e]{1,200}")  # visible ASCII without the bar that separates the parts
_SIGNER_DOMAIN = ".paypal.com"
OPTIONS = (SchemeOption("environment", "live", "the environment of the certificates: live or sandbox"),)


@dataclass(frozen=True, slots=True)
class PayPal:
    environment: str
    certificate: bytes | None = None
    name = "paypal"

    def certificate_url(self, headers: Headers) -> str | None:
        value = single_header(headers, _CERTIFICATE_URL)
        if not isinstance(value, bytes):
            return None
        url = value.decode("latin-1")
        for host in _HOSTS[self.environment]:
            if url.startswith(f"https://{host}/") and _PATH.fullmatch(url.removeprefix(f"https://{host}")):
                return url
        return None

    def with_certificate(self, pem: bytes) -> PayPal:
        return replace(self, certificate=pem)

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        by_name = {name: single_header(headers, name) for name in (_SIGNATURE, _ID, _TIME, _ALGORITHM)}
        refused = next((value for value in by_name.values() if isinstance(value, SignatureCheck)), None)
        if refused is not None:
            return refused
        signature, transmission, transmission_time, algorithm = (
            value if isinstance(value, bytes) else b"" for value in by_name.values()
        )
        if not signature:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {_SIGNATURE.decode()} header")
        signed_at = _parse_time(transmission_time)
        if algorithm != b"SHA256withRSA" or signed_at is None or not _TRANSMISSION.fullmatch(transmission):
            return malformed("the algorithm is not SHA256withRSA, or the transmission's id or time is none")
        certificate = parse_certificate(self.certificate) if self.certificate is not None else None
        if certificate is None or not any(name.endswith(_SIGNER_DOMAIN) for name in certificate.names):
            return malformed(f"{_CERTIFICATE_URL.decode()} names no certificate of PayPal's")
        if not certificate.not_before_at <= now <= certificate.not_after_at:
            return malformed("the certificate is not valid now")
        claimed, sum_of_body = decode_or_empty(signature, "base64"), str(crc32(body)).encode()
        texts = [
            b"|".join((transmission, transmission_time, webhook_id.strip(), sum_of_body)) for webhook_id in secrets
        ]
        check = check_from_matches([verify_rsa(certificate.key, claimed, text) for text in texts], secrets)
        return check_age(check, signed_at, now, tolerance_s)


def _parse_time(value: bytes) -> float | None:
    """ISO 8601 with its zone, as 2026-01-31T12:00:00Z; None for anything else."""
    try:
        moment = datetime.fromisoformat(value.decode("ascii"))
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def paypal(options: Mapping[str, str]) -> PayPal:
    """Raises ValueError if PayPal has no such environment."""
    environment = options.get("environment", OPTIONS[0].default)
    if environment not in _HOSTS:
        raise ValueError(f"environment: found {environment!r}, allowed: live or sandbox")
    return PayPal(environment)
