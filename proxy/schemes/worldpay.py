"""Worldpay (Access): `Event-Signature: <key id>/SHA256/<hex>[, ...]`, HMAC-SHA256 over the raw body; the key is written
in hex. What stands behind the last slash of each part is a signature, and any of them may fit.

From an independent integration, not from Worldpay: that every part may fit, and not the last alone, is UNVERIFIED. It
is safe all the same: whatever fits was made with our secret.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.core.call import Headers
from proxy.schemes.base import Check, Verdict
from proxy.schemes.signed import Signed, decoded, judge, only_value

_HEADER = b"Event-Signature"


class Worldpay:
    name = "worldpay"

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        value = only_value(headers, _HEADER)
        if isinstance(value, Check):
            return value
        texts = [part.rpartition(b"/")[2].strip() for part in value.split(b",")] if value is not None else []
        if not any(texts):
            return Check(Verdict.NO_SIGNATURE, detail=f"no {_HEADER.decode()} header")
        signatures = tuple(decoded(text, "hex") for text in texts)
        keys = [decoded(secret.strip(), "hex") for secret in secrets]
        return judge(Signed((body,), signatures, None), keys, "sha256", now, tolerance_s)
