"""Stripe: `Stripe-Signature: t=<seconds>,v1=<hex>[,v1=<hex>][,v0=...]`, HMAC-SHA256 over `<t>.<body>`.

The key is the whole secret, with its `whsec_`. While a secret is being replaced, Stripe sends several `v1`. `v0` is for
Stripe's test events and never counts. Stripe's own library refuses only signatures that are too old. We also refuse
those too far ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from paywitness.core.call import Headers
from paywitness.webhook_signatures.scheme import (
    SignatureCheck,
    SignatureVerdict,
    SignedContent,
    decode_or_empty,
    malformed,
    parse_timestamp,
    single_header,
    verify_hmac,
)

_HEADER = b"Stripe-Signature"


class Stripe:
    name = "stripe"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        signed = _read(headers, body)
        return (
            signed if isinstance(signed, SignatureCheck) else verify_hmac(signed, secrets, "sha256", now, tolerance_s)
        )


def _read(headers: Headers, body: bytes) -> SignedContent | SignatureCheck:
    value = single_header(headers, _HEADER)
    if isinstance(value, SignatureCheck):
        return value
    if value is None:
        return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="no Stripe-Signature header")
    items = value.split(b",")
    if any(item.strip() in (b"t", b"v1") for item in items):
        return malformed("Stripe-Signature holds a t or a v1 without a value")
    pairs = [(key.strip(), text.strip()) for key, _, text in (item.partition(b"=") for item in items)]
    times = [text for key, text in pairs if key == b"t"]
    signatures = [text for key, text in pairs if key == b"v1"]
    if len(times) != 1:
        return malformed("Stripe-Signature does not hold exactly one t=")
    timestamp = parse_timestamp(times[0])
    if isinstance(timestamp, SignatureCheck):
        return timestamp
    if not signatures:
        return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="Stripe-Signature holds no v1=")
    return SignedContent((timestamp, b".", body), tuple(decode_or_empty(text, "hex") for text in signatures), timestamp)
