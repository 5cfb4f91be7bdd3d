"""Braintree: a form with `bt_signature=<public key>|<hex>[&<public key>|<hex>]` and `bt_payload=<base64 of XML>`.

HMAC-SHA1 over the payload as it is written, in base64, with or without a newline at its end. The key is the SHA1 digest
of the private key. A secret is a private key. Braintree's library looks for the pair of its own public key. We compare
every pair with every private key, which proves the same and needs no second setting.

No time is signed, and there is no event id. Braintree's challenge (a GET) cannot verify the address, because the
listener takes only webhooks.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Sequence

from paywitness.core.bodies.bounds import UNVERIFIED_BOUNDS
from paywitness.core.bodies.tree import Encoding, decode
from paywitness.core.call import Headers
from paywitness.core.errors import BodyError
from paywitness.webhook_signatures.scheme import (
    HEADER_BYTES_MAX,
    SignatureCheck,
    SignatureVerdict,
    SignedContent,
    decode_or_empty,
    is_usable_key,
    malformed,
    verify_hmac,
)

_PAYLOAD = re.compile(r"[A-Za-z0-9+=/\n]+")


class Braintree:
    name = "braintree"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        try:
            signature, payload = _fields(body)
        except BodyError as error:
            return malformed(str(error))
        if not signature:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="no bt_signature in the form")
        pairs = [pair.partition("|") for pair in signature.split("&")]
        signatures = tuple(decode_or_empty(text.encode("utf-8", "replace"), "hex") for _, bar, text in pairs if bar)
        if not signatures:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="bt_signature holds no pair")
        keys = [_key_of(secret) for secret in secrets]
        texts = ((payload,), (payload, b"\n"))
        checks = [verify_hmac(SignedContent(text, signatures, None), keys, "sha1", now, tolerance_s) for text in texts]
        return next((check for check in checks if check.verdict is SignatureVerdict.GENUINE), checks[0])

    def extract_payload(self, body: bytes) -> tuple[bytes, Encoding]:
        _, payload = _fields(body)
        try:
            return binascii.a2b_base64(payload), Encoding.XML
        except ValueError:
            raise BodyError("bt_payload is not base64") from None


def _fields(body: bytes) -> tuple[str, bytes]:
    """The signature, which may be empty, and the payload. Raises BodyError."""
    tree = decode(body, Encoding.FORM, UNVERIFIED_BOUNDS)
    signature, payload = (tree.get(name, "") for name in ("bt_signature", "bt_payload"))
    if not isinstance(signature, str) or len(signature) > HEADER_BYTES_MAX:
        raise BodyError("bt_signature came more than once, or is too long")
    if signature and not (isinstance(payload, str) and _PAYLOAD.fullmatch(payload)):
        raise BodyError("bt_payload is not one text in base64")
    return signature, payload.encode() if isinstance(payload, str) else b""


def _key_of(secret: bytes) -> bytes:
    """Empty for an empty secret. Otherwise its digest would be a key that everybody knows."""
    return hashlib.sha1(secret).digest() if is_usable_key(secret) else b""  # noqa: S324  # what Braintree signs with
