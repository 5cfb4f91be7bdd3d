"""Schemes that sign nothing of the body.

    token        a secret that the provider repeats in a header; an option names the header
    xendit       Xendit: X-CALLBACK-TOKEN
    flutterwave  Flutterwave v3: verif-hash. (v4 signs, in a way that is UNVERIFIED. It is not read here.)
    unsigned     no proof at all, as Mollie's classic webhooks, whose whole body is the form `id=tr_...`

A token proves only the sender: anybody who has seen one webhook can send any other. Use TLS up to this listener. A
policy that needs certainty sets `hint: true`. `unsigned` is never genuine. It is at most a reason to inquire, and a
policy must say so.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paywitness.core.bodies.tree import Encoding
from paywitness.core.call import Headers
from paywitness.webhook_signatures.hmac_schemes import header_name
from paywitness.webhook_signatures.scheme import (
    SchemeOption,
    SignatureCheck,
    SignatureVerdict,
    check_from_matches,
    single_header,
)

TOKEN_OPTIONS = (SchemeOption("header", "X-Callback-Token", "the header with the secret"),)


@dataclass(frozen=True, slots=True)
class HeaderToken:
    name: str
    header: bytes

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        value = single_header(headers, self.header)
        if isinstance(value, SignatureCheck):
            return value
        if value is None:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {self.header.decode()} header")
        return check_from_matches([hmac.compare_digest(secret, value) for secret in secrets], secrets)


XENDIT = HeaderToken("xendit", b"X-CALLBACK-TOKEN")
FLUTTERWAVE = HeaderToken("flutterwave", b"verif-hash")


def token(options: Mapping[str, str]) -> HeaderToken:
    """Raises ValueError if the option is not a valid header name."""
    return HeaderToken("token", header_name("header", options.get("header", TOKEN_OPTIONS[0].default)))


# --- Unsigned

UNSIGNED_OPTIONS = (SchemeOption("body", "json", "the encoding of the body: json or form"),)


@dataclass(frozen=True, slots=True)
class Unsigned:
    body: Encoding
    name = "unsigned"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        return SignatureCheck(SignatureVerdict.UNSIGNED, detail="the provider signs nothing")

    def extract_payload(self, body: bytes) -> tuple[bytes, Encoding]:
        return body, self.body


def unsigned(options: Mapping[str, str]) -> Unsigned:
    """Raises ValueError for any other body."""
    written = options.get("body", UNSIGNED_OPTIONS[0].default)
    if written not in (Encoding.JSON, Encoding.FORM):
        raise ValueError(f"body: found {written!r}, allowed: json or form")
    return Unsigned(Encoding(written))
