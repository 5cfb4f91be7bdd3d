"""Adyen's standard webhooks: each item of a webhook carries its own signature, in `additionalData.hmacSignature`.

base64 HMAC-SHA256 over `pspReference:originalReference:merchantAccountCode:merchantReference:value:currency:eventCode:
success`, with nothing for a missing part. The key is written in hex. A webhook is genuine if every item is.

Adyen escapes nothing in the signed text. So only the merchantReference may hold a colon here. With no colon in the
other seven parts, the text can be split in only one way, and no part can pass for another. Adyen's library is less
strict.

Fields outside the eight parts are not signed (`reason`, the rest of `additionalData`). A policy matches and classifies
only by the eight. No time is signed either. The webhooks of Adyen's balance platform are signed in another way and are
not read here.
"""

from __future__ import annotations

from collections.abc import Sequence

from paywitness.core.bodies.bounds import UNVERIFIED_BOUNDS
from paywitness.core.bodies.tree import Tree, decode_json
from paywitness.core.call import Headers
from paywitness.core.errors import BodyError
from paywitness.webhook_signatures.scheme import (
    SignatureCheck,
    SignatureVerdict,
    SignedContent,
    decode_or_empty,
    malformed,
    verify_hmac,
)

_ITEMS_MAX = 500  # of one webhook, the same limit as the engine's; Adyen sends a handful
_REFERENCE_FIELDS = ("pspReference", "originalReference", "merchantAccountCode", "merchantReference")
_MAY_HOLD_COLON = "merchantReference"


class Adyen:
    name = "adyen"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        items = _items(body)
        if isinstance(items, SignatureCheck):
            return items
        keys = [decode_or_empty(secret.strip(), "hex") for secret in secrets]
        checks = [
            verify_hmac(item, keys, "sha256", now, tolerance_s) if isinstance(item, SignedContent) else item
            for item in items
        ]
        failed = next((check for check in checks if check.verdict is not SignatureVerdict.GENUINE), None)
        return failed or checks[0]


def _items(body: bytes) -> list[SignedContent | SignatureCheck] | SignatureCheck:
    try:
        tree = decode_json(body, UNVERIFIED_BOUNDS)
    except BodyError:
        return malformed("the body is not JSON")
    found = tree.get("notificationItems") if isinstance(tree, dict) else None
    if not isinstance(found, list) or not 1 <= len(found) <= _ITEMS_MAX:
        return malformed(f"notificationItems is no list of 1 to {_ITEMS_MAX}")
    return [_signed(item.get("NotificationRequestItem") if isinstance(item, dict) else None) for item in found]


def _signed(item: Tree) -> SignedContent | SignatureCheck:
    if not isinstance(item, dict):
        return malformed("an item holds no NotificationRequestItem")
    additional_data = item.get("additionalData")
    signature = additional_data.get("hmacSignature") if isinstance(additional_data, dict) else None
    if signature is None or signature == "":
        return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="an item holds no additionalData.hmacSignature")
    parts = _parts(item)
    if parts is None or not isinstance(signature, str):
        return malformed("an item's signed parts are not what Adyen sends")
    text = ":".join(parts).encode("utf-8", "surrogatepass")
    return SignedContent((text,), (decode_or_empty(signature.encode("utf-8", "surrogatepass"), "base64"),), None)


def _parts(item: dict[str, Tree]) -> list[str] | None:
    """The eight parts, in order. None if one is of another type, or holds a colon that it must not hold."""
    amount = item.get("amount", {})
    if not isinstance(amount, dict):
        return None
    values = {name: item.get(name, "") for name in (*_REFERENCE_FIELDS, "eventCode", "success")}
    value = amount.get("value", "")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    ordered = [
        *(values[name] for name in _REFERENCE_FIELDS),
        value,
        amount.get("currency", ""),
        values["eventCode"],
        values["success"],
    ]
    texts = [part for part in ordered if isinstance(part, str)]
    colon_index = _REFERENCE_FIELDS.index(_MAY_HOLD_COLON)
    colon = any(":" in text for index, text in enumerate(texts) if index != colon_index)
    return None if colon or len(texts) != len(ordered) else texts
