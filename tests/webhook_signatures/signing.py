"""How the senders sign, written out a second time in the plainest way, so that a check is not proved by itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from urllib.parse import urlencode

from paywitness.core.call import Headers
from paywitness.webhook_signatures.registry import scheme_named
from paywitness.webhook_signatures.scheme import SignatureCheck, SignatureScheme

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

# What a scheme must be told before it can be made.
NEEDED = {"square": {"url": "https://shop.test/hooks"}, "dlocal": {"login": "login1"}}


# Every scheme that signs no time, by name: what its sender sends, signed with a secret as we are given it.
Sent = tuple[Headers, bytes]


def in_header(name: str, algorithm: str = "sha256", prefix: str = "") -> Callable[[bytes], Sent]:
    def send(secret: bytes) -> Sent:
        return ((name.encode(), f"{prefix}{hex_of(BODY, secret, algorithm)}".encode()),), BODY

    return send


def square(secret: bytes, body: bytes = BODY) -> Sent:
    return headers(x_square_hmacsha256_signature=base64_of(b"https://shop.test/hooks" + body, secret)), body


ADYEN_ITEM = {
    "pspReference": "7914073381342284",
    "originalReference": "",
    "merchantAccountCode": "TestMerchant",
    "merchantReference": "TestPayment-1407325143704",
    "amount": {"value": 1130, "currency": "EUR"},
    "eventCode": "AUTHORISATION",
    "success": "true",
}


def adyen_item(secret: bytes, item: dict = ADYEN_ITEM) -> dict:
    amount = item["amount"]
    text = ":".join(
        [
            *(item[name] for name in ("pspReference", "originalReference", "merchantAccountCode", "merchantReference")),
            *(str(amount["value"]), amount["currency"], item["eventCode"], item["success"]),
        ]
    )
    return {**item, "additionalData": {"hmacSignature": base64_of(text.encode(), bytes.fromhex(secret.decode()))}}


def adyen_body(*items: dict) -> bytes:
    listed = [{"NotificationRequestItem": item} for item in items]
    return json.dumps({"live": "false", "notificationItems": listed}).encode()


def adyen(secret: bytes) -> Sent:
    return (), adyen_body(adyen_item(secret))


def braintree(secret: bytes, xml: bytes = b"<notification/>", newline: bytes = b"") -> Sent:
    payload = base64.encodebytes(xml).rstrip(b"\n")
    signature = hmac.new(hashlib.sha1(secret).digest(), payload + newline, hashlib.sha1).hexdigest()
    form = {"bt_signature": f"public_key|{signature}", "bt_payload": payload.decode()}
    return (), urlencode(form).encode()


def worldpay(secret: bytes) -> Sent:
    return headers(Event_Signature=f"key-1/SHA256/{hex_of(BODY, bytes.fromhex(secret.decode()))}"), BODY


def midtrans(secret: bytes, **fields: object) -> Sent:
    event = {"order_id": "order-1", "status_code": "200", "gross_amount": "10000.00"}
    text = "".join(event.values()).encode() + secret
    return (), json.dumps({**event, "signature_key": hashlib.sha512(text).hexdigest(), **fields}).encode()


def token_in(name: bytes) -> Callable[[bytes], Sent]:
    return lambda secret: (((name, secret),), BODY)


UNTIMED: dict[str, Callable[[bytes], Sent]] = {
    "checkout": in_header("Cko-Signature"),
    "gocardless": in_header("Webhook-Signature"),
    "razorpay": in_header("X-Razorpay-Signature"),
    "paystack": in_header("x-paystack-signature", "sha512"),
    "mollie": in_header("X-Mollie-Signature", prefix="sha256="),
    "authorizenet": in_header("X-ANET-Signature", "sha512", "sha512="),
    "coinbase": in_header("X-CC-Webhook-Signature"),
    "square": square,
    "adyen": adyen,
    "braintree": braintree,
    "worldpay": worldpay,
    "midtrans": midtrans,
    "xendit": token_in(b"X-Callback-Token"),
    "flutterwave": token_in(b"verif-hash"),
    "token": token_in(b"X-Callback-Token"),
}


def check(
    scheme: str | SignatureScheme, sent: Headers, *secrets: bytes, body: bytes = BODY, now: float = NOW, **options: str
) -> SignatureCheck:
    """Checked with SECRET where no other is given."""
    checker = scheme_named(scheme, NEEDED.get(scheme, {}) | options) if isinstance(scheme, str) else scheme
    return checker.check(sent, body, secrets or (SECRET,), now, TOLERANCE_S)


def changed(sent: Headers, name: bytes, value: bytes) -> Headers:
    return tuple((key, value if key.lower() == name.lower() else old) for key, old in sent)


def value_in(sent: Headers, name: bytes) -> bytes:
    return next(value for key, value in sent if key.lower() == name.lower())
