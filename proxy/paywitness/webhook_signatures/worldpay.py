"""Worldpay (Access): `Event-Signature: <key id>/SHA256/<hex>[, ...]`, HMAC-SHA256 over the raw body. The key is written
in hex. In each part the text after the last slash is a signature, and any of them may fit.

From an independent integration, not from Worldpay. That every part may fit, and not only the last, is UNVERIFIED. It is
safe in any case: a signature that fits was made with our secret.
"""

from __future__ import annotations

from collections.abc import Sequence

from paywitness.core.call import Headers
from paywitness.webhook_signatures.scheme import (
    SignatureCheck,
    SignatureVerdict,
    SignedContent,
    decode_or_empty,
    single_header,
    verify_hmac,
)

_HEADER = b"Event-Signature"


class Worldpay:
    name = "worldpay"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        value = single_header(headers, _HEADER)
        if isinstance(value, SignatureCheck):
            return value
        texts = [part.rpartition(b"/")[2].strip() for part in value.split(b",")] if value is not None else []
        if not any(texts):
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {_HEADER.decode()} header")
        signatures = tuple(decode_or_empty(text, "hex") for text in texts)
        keys = [decode_or_empty(secret.strip(), "hex") for secret in secrets]
        return verify_hmac(SignedContent((body,), signatures, None), keys, "sha256", now, tolerance_s)
