"""Wise: `X-Signature-SHA256`, base64 RSA-SHA256 over the raw body. A "secret" is Wise's public key, which it publishes
for live and for its sandbox: in PEM, or as base64 on one line. Nothing of it is secret, and it is given rather than
fetched.

No time is signed. From an old specification and an independent integration; UNVERIFIED against today's documentation.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.core.call import Headers
from proxy.schemes.base import Check, Verdict
from proxy.schemes.public_key import key_in, signed_by
from proxy.schemes.signed import decoded, fitting, only_value

_HEADER = b"X-Signature-SHA256"


class Wise:
    name = "wise"

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        value = only_value(headers, _HEADER)
        if isinstance(value, Check):
            return value
        if value is None:
            return Check(Verdict.NO_SIGNATURE, detail=f"no {_HEADER.decode()} header")
        signature = decoded(value, "base64")
        keys = [key_in(secret) for secret in secrets]
        return fitting([key is not None and signed_by(key, signature, body) for key in keys], secrets)
