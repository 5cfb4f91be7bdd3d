"""Fuzzing what providers tell unasked: no scheme raises, nothing unsigned is genuine, and what is read has names."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from paywitness.core.errors import BodyError
from paywitness.core.policy import Provider
from paywitness.core.webhook_event import object_and_rules, webhook_events_in
from paywitness.engine.webhooks.verification import decode_payload, scheme_for
from paywitness.policy.book import load_content
from paywitness.webhook_signatures.registry import SCHEMES, scheme_named
from paywitness.webhook_signatures.scheme import SignatureVerdict
from tests.e2e.sidecar import TOP
from tests.fuzz.mutation import kept, mutated
from tests.webhook_signatures.signing import NEEDED, NOW, SECRET, SENDERS

SEEDS = [
    b'{"id": "evt_1", "type": "charge.succeeded", "account": null, "data": {"id": "ch_1", "object": "charge", '
    b'"status": "succeeded", "metadata": {"paywitness": "op_1"}, "idempotency_key": "k"}}',
    b'{"notificationItems": [{"NotificationRequestItem": {"pspReference": "1", "eventCode": "AUTHORISATION", '
    b'"success": "true", "amount": {"value": 1, "currency": "EUR"}, "additionalData": {"hmacSignature": "aGk="}}}]}',
    b"bt_signature=a%7Cb&bt_payload=PHhtbD48L3htbD4%3D",
    b"<notification><kind>transaction_settled</kind><subject><transaction><id>1</id></transaction></subject></notification>",
]
PIECES = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b":",
        b",",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"1e400",
        b"\\ud800",
        b"\\u0000",
        b"\x00",
    ),
    *(
        b"&",
        b"=",
        b"%",
        b"<",
        b">",
        b"\xff",
        b"t=",
        b",v1=",
        b"sha256=",
        b"aGk=",
        b"9" * 30,
        b"-1",
        b"evt_1",
        b"id",
        b"data",
    ),
]
BODIES = mutated([*SEEDS, *kept("webhook")], PIECES)
_NAMES = sorted(
    {
        *("Webhook-Signature", "Webhook-Timestamp", "Stripe-Signature", "webhook-id", "webhook-timestamp"),
        *(
            "webhook-signature",
            "X-Signature",
            "X-Square-Hmacsha256-Signature",
            "X-Signature-SHA256",
            "Content-Encoding",
        ),
        *(
            "PAYPAL-TRANSMISSION-ID",
            "PAYPAL-TRANSMISSION-SIG",
            "PAYPAL-CERT-URL",
            "PAYPAL-AUTH-ALGO",
            "Event-Signature",
        ),
        *("X-Callback-Token", "Cko-Signature", "X-Razorpay-Signature", "X-Paystack-Signature", "verif-hash", "X-Date"),
    }
)
_VALUES = mutated(
    [b"", b"t=1700000000,v1=" + b"a" * 64, b"v1,aGk=", b"sha256=" + b"0" * 64, b"gzip", b"1700000000"], PIECES
)
HEADERS = st.lists(st.tuples(st.sampled_from([name.encode() for name in _NAMES]), _VALUES), max_size=5).map(tuple)
PROVIDERS = st.sampled_from(sorted(file.stem for file in (TOP / "policies").glob("*.yaml")))


def _secretless(name: str) -> bool:
    return name in {"unsigned", "none"}


def unsigned_is_never_genuine(headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
    for name in SCHEMES:
        try:
            scheme = scheme_named(name, NEEDED.get(name, {}))
        except ValueError:
            continue  # it wants more options than we have here
        found = scheme.check(headers, body, (SECRET,), NOW, 300.0)
        assert found.verdict is not SignatureVerdict.GENUINE or _secretless(name), name


def only_what_was_signed_is_genuine(body: bytes, other: bytes) -> None:
    for name, sign in SENDERS.items():
        scheme = scheme_named(name, {})
        assert scheme.check(sign(body=body), body, (SECRET,), NOW, 300.0).verdict is SignatureVerdict.GENUINE
        if other != body:
            assert scheme.check(sign(body=body), other, (SECRET,), NOW, 300.0).verdict is not SignatureVerdict.GENUINE


@cache
def _provider(name: str) -> Provider:
    return load_content((TOP / "policies" / f"{name}.yaml").read_bytes(), f"{name}.yaml")


def delivery_is_read_or_refused(name: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
    rules = _provider(name).webhook_rules
    if rules is None:
        return
    scheme = scheme_for(rules, {})
    if scheme is None:
        return
    try:
        notices = webhook_events_in(rules, decode_payload(scheme, headers, body), headers)
    except BodyError:
        return
    for notice in notices:
        assert notice.event_id
        object_and_rules(rules, notice.payload)
