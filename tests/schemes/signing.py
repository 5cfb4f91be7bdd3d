"""How the senders sign, written out a second time in the plainest way, so that a check is not proved by itself."""

from __future__ import annotations

import base64
import hashlib
import hmac

from proxy.core.call import Headers
from proxy.schemes.base import Check, Scheme
from proxy.schemes.named import scheme_named

NOW = 1_700_000_000
TOLERANCE_S = 300.0
BODY = b'{"id":"evt_1"}'
SECRET = b"acme-secret"
OLD_SECRET = b"acme-secret-of-last-year"


def headers(**values: str) -> Headers:
    """`Webhook_Signature="..."` becomes the header Webhook-Signature."""
    return tuple((name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in values.items())


def hex_of(text: bytes, secret: bytes, algorithm: str = "sha256") -> str:
    return hmac.new(secret, text, getattr(hashlib, algorithm)).hexdigest()


def base64_of(text: bytes, secret: bytes, algorithm: str = "sha256") -> str:
    return base64.b64encode(bytes.fromhex(hex_of(text, secret, algorithm))).decode()


def plain(secret: bytes = SECRET, body: bytes = BODY, at: int | str = NOW) -> Headers:
    signature = hex_of(f"{at}.".encode() + body, secret)
    return headers(Webhook_Signature=f"sha256={signature}", Webhook_Timestamp=str(at))


def stripe(secret: bytes = SECRET, body: bytes = BODY, at: int | str = NOW) -> Headers:
    return headers(Stripe_Signature=f"t={at},v1={hex_of(f'{at}.'.encode() + body, secret)}")


def standard(secret: bytes = SECRET, body: bytes = BODY, at: int | str = NOW, message_id: str = "msg_1") -> Headers:
    signature = base64_of(f"{message_id}.{at}.".encode() + body, secret)
    return headers(webhook_id=message_id, webhook_timestamp=str(at), webhook_signature=f"v1,{signature}")


# Every scheme that signs a time, by name, with how its sender signs.
SENDERS = {"hmac_sha256": plain, "stripe": stripe, "standard": standard}
# And the header that carries its signature.
CARRIERS = {"hmac_sha256": b"Webhook-Signature", "stripe": b"Stripe-Signature", "standard": b"webhook-signature"}


def check(
    scheme: str | Scheme, sent: Headers, *secrets: bytes, body: bytes = BODY, now: float = NOW, **options: str
) -> Check:
    """Checked with SECRET where no other is given."""
    checker = scheme_named(scheme, options) if isinstance(scheme, str) else scheme
    return checker.check(sent, body, secrets or (SECRET,), now, TOLERANCE_S)


def changed(sent: Headers, name: bytes, value: bytes) -> Headers:
    return tuple((key, value if key.lower() == name.lower() else old) for key, old in sent)


def value_in(sent: Headers, name: bytes) -> bytes:
    return next(value for key, value in sent if key.lower() == name.lower())
