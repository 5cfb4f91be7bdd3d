"""Standard Webhooks 1.0.0, the symmetric half: it checks webhooks of others, and signs our own events.

`webhook-signature: v1,<base64> [v1,<base64>]`, HMAC-SHA256 over `<webhook-id>.<webhook-timestamp>.<body>`. A secret is
`whsec_<base64>`, or the key's own bytes. Asymmetric signatures (`v1a`) are ignored.

An id with a dot is refused, as the specification advises. Otherwise text inside a genuine body could be presented as
the timestamp and body of another message with the same signature.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence

from paywitness.core.call import Headers
from paywitness.webhook_signatures.scheme import (
    SignatureCheck,
    SignatureVerdict,
    SignedContent,
    decode_or_empty,
    hmac_digest,
    is_usable_key,
    malformed,
    parse_timestamp,
    single_header,
    verify_hmac,
)

_ID, _TIMESTAMP, _SIGNATURE = b"webhook-id", b"webhook-timestamp", b"webhook-signature"
_SECRET_PREFIX = b"whsec_"
# The prefixes of ed25519 keys. If a public key were used as an HMAC key, everybody who has it could sign.
_ASYMMETRIC_KEY_PREFIXES = (b"whpk_", b"whsk_")
_MESSAGE_ID = re.compile(rb"[\x21-\x2d\x2f-\x7e]{1,256}")  # visible ASCII without the dot; 256 holds every id in use


class StandardWebhooks:
    name = "standard"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        signed = _read(headers, body)
        if isinstance(signed, SignatureCheck):
            return signed
        return verify_hmac(signed, [_key_of(secret) for secret in secrets], "sha256", now, tolerance_s)


def sign(message_id: str, timestamp: int, body: bytes, secret: bytes) -> Headers:
    """The three headers to send with the body. A message keeps its id on every delivery, and its time changes.

    Raises ValueError for anything that a receiver would refuse: an id with a dot, an empty or unreadable secret.
    """
    sent_id, sent_at, key = message_id.encode(), str(timestamp).encode(), _key_of(secret)
    if not _MESSAGE_ID.fullmatch(sent_id):
        raise ValueError(f"found the message id {message_id!r}, allowed: 1 to 256 visible ASCII characters, no dot")
    if isinstance(parse_timestamp(sent_at), SignatureCheck):
        raise ValueError(f"found the timestamp {timestamp!r}, allowed: whole seconds since 1970, at most 12 digits")
    if not is_usable_key(key):
        raise ValueError("found a secret that is empty or cannot be read, allowed: whsec_<base64>, or the key's bytes")
    digest = hmac_digest((sent_id, b".", sent_at, b".", body), key, "sha256")
    signature = b"v1," + binascii.b2a_base64(digest, newline=False)
    return (_ID, sent_id), (_TIMESTAMP, sent_at), (_SIGNATURE, signature)


def _read(headers: Headers, body: bytes) -> SignedContent | SignatureCheck:
    signature = single_header(headers, _SIGNATURE)
    if isinstance(signature, SignatureCheck):
        return signature
    if signature is None:
        return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="no webhook-signature header")
    message_id = single_header(headers, _ID) or b""
    timestamp = single_header(headers, _TIMESTAMP) or b""
    if isinstance(message_id, SignatureCheck):
        return message_id
    if not _MESSAGE_ID.fullmatch(message_id):
        return malformed("webhook-id is not 1 to 256 visible ASCII characters without a dot")
    if not isinstance(timestamp, SignatureCheck):
        timestamp = parse_timestamp(timestamp)
    if isinstance(timestamp, SignatureCheck):
        return timestamp
    versions = [item.partition(b",") for item in signature.split(b" ") if item]
    signatures = tuple(decode_or_empty(text, "base64") for version, _, text in versions if version == b"v1")
    if not signatures:
        return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail="webhook-signature holds no v1")
    return SignedContent((message_id, b".", timestamp, b".", body), signatures, timestamp)


def _key_of(secret: bytes) -> bytes:
    """The key of the secret. Empty, which fits nothing, if the secret cannot be read."""
    if secret.startswith(_ASYMMETRIC_KEY_PREFIXES):
        return b""
    if not secret.startswith(_SECRET_PREFIX):
        return secret
    text = secret.removeprefix(_SECRET_PREFIX).rstrip(b"=")
    return decode_or_empty(text + b"=" * (-len(text) % 4), "base64")  # some senders leave out the padding
