"""Wise: `X-Signature-SHA256`, base64 RSA-SHA256 over the raw body. A "secret" is Wise's public key, in PEM or as base64
on one line. Wise publishes one for live and one for its sandbox. It is not secret. The policy gives it, and we do not
fetch it.

No time is signed. From an old specification and an independent integration; UNVERIFIED against today's documentation.
"""

from __future__ import annotations

from collections.abc import Sequence

from paywitness.core.call import Headers
from paywitness.webhook_signatures.rsa import parse_public_key, verify_rsa
from paywitness.webhook_signatures.scheme import (
    SignatureCheck,
    SignatureVerdict,
    check_from_matches,
    decode_or_empty,
    single_header,
)

_HEADER = b"X-Signature-SHA256"


class Wise:
    name = "wise"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        value = single_header(headers, _HEADER)
        if isinstance(value, SignatureCheck):
            return value
        if value is None:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {_HEADER.decode()} header")
        signature = decode_or_empty(value, "base64")
        keys = [parse_public_key(secret) for secret in secrets]
        return check_from_matches([key is not None and verify_rsa(key, signature, body) for key in keys], secrets)
