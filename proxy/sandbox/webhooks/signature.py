"""How an event is signed. The HMAC's key is the secret's own bytes, prefix included; what is signed is the raw body."""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum


class Scheme(StrEnum):
    HMAC_SHA256 = "hmac_sha256"
    STRIPE = "stripe"


def signature_headers(scheme: Scheme, secret: str, body: bytes, timestamp: int) -> dict[str, str]:
    """Both schemes sign `timestamp.body`, so that neither can be changed without the other."""
    signed = hmac.new(secret.encode(), str(timestamp).encode() + b"." + body, hashlib.sha256).hexdigest()
    if scheme is Scheme.STRIPE:
        return {"Stripe-Signature": f"t={timestamp},v1={signed}"}
    return {"Webhook-Timestamp": str(timestamp), "Webhook-Signature": f"sha256={signed}"}
