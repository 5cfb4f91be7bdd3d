"""Providers that sign the raw body and nothing else: an HMAC in hex, in one header of their own.

No time is signed, so a delivery never grows too old: a repetition is known by its event id, and what it says again
changes nothing. Sources are those of the provider facts; UNVERIFIED is what nobody official says.

    checkout      Checkout.com: Cko-Signature
    gocardless    GoCardless: Webhook-Signature; its own library checks it in the same way
    razorpay      Razorpay: X-Razorpay-Signature; its own library too. The event id is in a header, x-razorpay-event-id,
                  which is not signed
    paystack      Paystack: x-paystack-signature, SHA-512; the secret is the API's own secret key
    mollie        Mollie's next-generation events: X-Mollie-Signature: sha256=<hex>. Its classic webhooks are not
                  signed: see `unsigned`
    authorizenet  Authorize.net: X-ANET-Signature: sha512=<hex>. That the signature key counts as text, and is not
                  decoded from its hex, is UNVERIFIED
    coinbase      Coinbase Commerce: X-CC-Webhook-Signature
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.core.call import Headers
from proxy.schemes.base import Check, Verdict
from proxy.schemes.signed import Algorithm, Signed, decoded, judge, only_value


@dataclass(frozen=True, slots=True)
class OverBody:
    name: str
    header: bytes
    algorithm: Algorithm
    prefix: bytes = b""  # before the signature; one without it is read as well

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        value = only_value(headers, self.header)
        if isinstance(value, Check):
            return value
        if value is None:
            return Check(Verdict.NO_SIGNATURE, detail=f"no {self.header.decode()} header")
        signature = decoded(value.removeprefix(self.prefix), "hex")
        return judge(Signed((body,), (signature,), None), secrets, self.algorithm, now, tolerance_s)


OVER_BODY = (
    OverBody("checkout", b"Cko-Signature", "sha256"),
    OverBody("gocardless", b"Webhook-Signature", "sha256"),
    OverBody("razorpay", b"X-Razorpay-Signature", "sha256"),
    OverBody("paystack", b"X-Paystack-Signature", "sha512"),
    OverBody("mollie", b"X-Mollie-Signature", "sha256", b"sha256="),
    OverBody("authorizenet", b"X-ANET-Signature", "sha512", b"sha512="),
    OverBody("coinbase", b"X-CC-Webhook-Signature", "sha256"),
)
