"""Midtrans: `signature_key` in the body, hex SHA-512 of `order_id + status_code + gross_amount + server key`.
UNVERIFIED: Midtrans' own library does not check it, but inquires the status.

It proves little. The parts are joined without a separator, so a genuine text can also be read as another order with
another amount. And `transaction_status` is not signed. A policy may take such an event only as a hint.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from paywitness.core.bodies.bounds import UNVERIFIED_BOUNDS
from paywitness.core.bodies.tree import decode_json
from paywitness.core.call import Headers
from paywitness.core.errors import BodyError
from paywitness.webhook_signatures.scheme import (
    SignatureCheck,
    SignatureVerdict,
    check_from_matches,
    decode_or_empty,
    malformed,
)

_ORDER = re.compile(r"[\x21-\x7e]{1,255}")
_STATUS = re.compile(r"[0-9]{3}")
_AMOUNT = re.compile(r"[0-9]{1,20}(\.[0-9]{1,2})?")


class Midtrans:
    name = "midtrans"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        try:
            tree = decode_json(body, UNVERIFIED_BOUNDS)
        except BodyError:
            return malformed("the body is not JSON")
        if not isinstance(tree, dict):
            return malformed("the body is no object")
        signature = tree.get("signature_key")
        if signature is None or signature == "":
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="no signature_key in the body")
        parts = [
            (_ORDER, tree.get("order_id")),
            (_STATUS, tree.get("status_code")),
            (_AMOUNT, tree.get("gross_amount")),
        ]
        texts = [text for shape, text in parts if isinstance(text, str) and shape.fullmatch(text)]
        if len(texts) != len(parts) or not isinstance(signature, str):
            return malformed("order_id, status_code, gross_amount or signature_key is not what Midtrans sends")
        claimed = decode_or_empty(signature.encode("utf-8", "replace"), "hex")
        signed = "".join(texts).encode()
        matches = [hmac.compare_digest(hashlib.sha512(signed + secret).digest(), claimed) for secret in secrets]
        return check_from_matches(matches, secrets)
