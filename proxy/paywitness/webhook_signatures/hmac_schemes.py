"""hmac_sha256 and hmac_sha512: for providers with an ordinary HMAC, whose options give the headers and the signed text.
And providers that sign only the raw body.

If an option names a timestamp header, the time must be present and signed. A request without it is refused, and so are
options that would leave it unsigned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paywitness.core import policy_defaults
from paywitness.core.call import Headers
from paywitness.core.credential_and_hop_headers import TOKEN_CLASS
from paywitness.webhook_signatures.scheme import (
    DIGEST_BYTES,
    Algorithm,
    SchemeOption,
    SignatureCheck,
    SignatureEncoding,
    SignatureVerdict,
    SignedContent,
    decode_or_empty,
    header_values,
    malformed,
    parse_timestamp,
    single_header,
    verify_hmac,
)

NO_TIMESTAMP = "none"
_TIMED, _UNTIMED = "{timestamp}.{body}", "{body}"
_TIMESTAMP_PLACEHOLDER, _BODY_PLACEHOLDER = b"{timestamp}", b"{body}"
_PLACEHOLDER = re.compile(r"(\{[^{}]*\})")
_HEADER_NAME = re.compile(TOKEN_CLASS + "{1,100}")
_BETWEEN_SIGNATURES = re.compile(rb"[, \t]+")


@dataclass(frozen=True, slots=True)
class GenericHmac:
    algorithm: Algorithm
    header: bytes
    encoding: SignatureEncoding
    prefix: bytes
    timestamp_header: bytes | None
    signed: tuple[bytes, ...]  # the template in pieces, with its placeholders

    @property
    def name(self) -> str:
        return f"hmac_{self.algorithm}"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        signed = self._read(headers, body)
        return (
            signed
            if isinstance(signed, SignatureCheck)
            else verify_hmac(signed, secrets, self.algorithm, now, tolerance_s)
        )

    def _read(self, headers: Headers, body: bytes) -> SignedContent | SignatureCheck:
        values = header_values(headers, self.header)  # a list may come as several headers of one name: RFC 9110, 5.3
        if isinstance(values, SignatureCheck):
            return values
        texts = [text for value in values for text in _BETWEEN_SIGNATURES.split(value) if text]
        if not texts:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {self.header.decode()} header")
        timestamp = self._timestamp(headers)
        if isinstance(timestamp, SignatureCheck):
            return timestamp
        fillings = {_TIMESTAMP_PLACEHOLDER: timestamp or b"", _BODY_PLACEHOLDER: body}
        parts = tuple(fillings.get(piece, piece) for piece in self.signed)
        return SignedContent(parts, tuple(map(self._signature, texts)), timestamp)

    def _timestamp(self, headers: Headers) -> bytes | SignatureCheck | None:
        if self.timestamp_header is None:
            return None
        value = single_header(headers, self.timestamp_header)
        if value is None:
            return malformed(f"no {self.timestamp_header.decode()} header")
        return value if isinstance(value, SignatureCheck) else parse_timestamp(value)

    def _signature(self, text: bytes) -> bytes:
        """The signature with or without the prefix. We try the whole text first, because the prefix may look like the
        start of a signature."""
        whole = decode_or_empty(text, self.encoding)
        if len(whole) == DIGEST_BYTES[self.algorithm]:
            return whole
        return decode_or_empty(text.removeprefix(self.prefix), self.encoding)


def generic_hmac_options(algorithm: Algorithm) -> tuple[SchemeOption, ...]:
    return (
        SchemeOption(
            "header",
            policy_defaults.WEBHOOK_SIGNATURE_HEADER,
            "the header with the signature, or several between commas or spaces",
        ),
        SchemeOption("encoding", "hex", "the encoding of the signature: hex or base64"),
        SchemeOption("prefix", f"{algorithm}=", "the text before a signature; a signature without it is read too"),
        SchemeOption(
            "timestamp_header",
            policy_defaults.WEBHOOK_TIMESTAMP_HEADER,
            "the header with the time in seconds; none if there is none",
        ),
        SchemeOption("signed", "", f"the signed text: {_TIMED}, or {_UNTIMED} if timestamp_header is none"),
    )


def generic_hmac(algorithm: Algorithm, options: Mapping[str, str]) -> GenericHmac:
    """Raises ValueError if the options are not valid."""
    chosen = {option.name: option.default for option in generic_hmac_options(algorithm)} | dict(options)
    timed = chosen["timestamp_header"] != NO_TIMESTAMP
    if timed and chosen["timestamp_header"].lower() == chosen["header"].lower():
        raise ValueError(f"found {chosen['header']!r} for both header and timestamp_header, allowed: two headers")
    return GenericHmac(
        algorithm,
        header=header_name("header", chosen["header"]),
        encoding=_encoding(chosen["encoding"]),
        prefix=_prefix(chosen["prefix"]),
        timestamp_header=header_name("timestamp_header", chosen["timestamp_header"]) if timed else None,
        signed=_template(chosen["signed"] or (_TIMED if timed else _UNTIMED), timed=timed),
    )


def header_name(option: str, value: str) -> bytes:
    if not _HEADER_NAME.fullmatch(value):
        raise ValueError(f"{option}: found {value!r}, allowed: the name of a header, such as Webhook-Signature")
    return value.encode()


def _encoding(value: str) -> SignatureEncoding:
    if value == "hex":
        return "hex"
    if value == "base64":
        return "base64"
    raise ValueError(f"encoding: found {value!r}, allowed: hex or base64")


def _prefix(value: str) -> bytes:
    if not value.isascii() or (value and not value.isprintable()) or set(value) & set(", "):
        raise ValueError(f"prefix: found {value!r}, allowed: visible ASCII characters without commas and spaces")
    return value.encode()


def _template(value: str, *, timed: bool) -> tuple[bytes, ...]:
    pieces = tuple(piece.encode() for piece in _PLACEHOLDER.split(value) if piece)
    placeholders = sorted(piece for piece in pieces if b"{" in piece or b"}" in piece)
    if placeholders != ([_BODY_PLACEHOLDER, _TIMESTAMP_PLACEHOLDER] if timed else [_BODY_PLACEHOLDER]):
        allowed = "{timestamp} and {body}, once each" if timed else "{body}, once, as timestamp_header is none"
        raise ValueError(f"signed: found {value!r}, allowed: text with the places {allowed}")
    return pieces


# --- HMAC of the body
# Providers that sign only the raw body: an HMAC in hex, in a header of their own.
#
# No time is signed, so a webhook is never too old. The engine recognises a repeated one by its event id, and its
# content changes nothing. A claim that no official source confirms is marked UNVERIFIED.
#
#     checkout      Checkout.com: Cko-Signature
#     gocardless    GoCardless: Webhook-Signature; its own library checks it in the same way
#     razorpay      Razorpay: X-Razorpay-Signature; its own library too. The event id is in a header that is
#                   not signed, x-razorpay-event-id
#     paystack      Paystack: x-paystack-signature, SHA-512; the secret is the API's own secret key
#     mollie        Mollie's next-generation events: X-Mollie-Signature: sha256=<hex>. Its classic webhooks are not
#                   signed: see `unsigned`
#     authorizenet  Authorize.net: X-ANET-Signature: sha512=<hex>. That the signature key is used as text, and not
#                   decoded from its hex, is UNVERIFIED
#     coinbase      Coinbase Commerce: X-CC-Webhook-Signature


@dataclass(frozen=True, slots=True)
class BodyHmac:
    name: str
    header: bytes
    algorithm: Algorithm
    prefix: bytes = b""  # before the signature; a signature without it is read too

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        value = single_header(headers, self.header)
        if isinstance(value, SignatureCheck):
            return value
        if value is None:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {self.header.decode()} header")
        signature = decode_or_empty(value.removeprefix(self.prefix), "hex")
        return verify_hmac(SignedContent((body,), (signature,), None), secrets, self.algorithm, now, tolerance_s)


BODY_HMAC_SCHEMES = (
    BodyHmac("checkout", b"Cko-Signature", "sha256"),
    BodyHmac("gocardless", b"Webhook-Signature", "sha256"),
    BodyHmac("razorpay", b"X-Razorpay-Signature", "sha256"),
    BodyHmac("paystack", b"X-Paystack-Signature", "sha512"),
    BodyHmac("mollie", b"X-Mollie-Signature", "sha256", b"sha256="),
    BodyHmac("authorizenet", b"X-ANET-Signature", "sha512", b"sha512="),
    BodyHmac("coinbase", b"X-CC-Webhook-Signature", "sha256"),
)
