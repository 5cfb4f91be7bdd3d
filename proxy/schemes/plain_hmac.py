"""hmac_sha256 and hmac_sha512: for providers that sign in an ordinary way, told by options where and how.

Where a timestamp header is named, the time must be there and must be signed: a request never gets by without it, and
options that would leave it unsigned are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.core.call import Headers
from proxy.schemes.base import Check, Option, Verdict
from proxy.schemes.signed import (
    DIGEST_BYTES,
    Algorithm,
    Encoding,
    Signed,
    decoded,
    judge,
    malformed,
    only_value,
    timestamp_in,
    values_of,
)

NO_TIMESTAMP = "none"
_TIMED, _UNTIMED = "{timestamp}.{body}", "{body}"
_TIMESTAMP_PLACE, _BODY_PLACE = b"{timestamp}", b"{body}"
_PLACE = re.compile(r"(\{[^{}]*\})")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_BETWEEN_SIGNATURES = re.compile(rb"[, \t]+")


@dataclass(frozen=True, slots=True)
class PlainHmac:
    algorithm: Algorithm
    header: bytes
    encoding: Encoding
    prefix: bytes
    timestamp_header: bytes | None
    signed: tuple[bytes, ...]  # the template in pieces, its places among them

    @property
    def name(self) -> str:
        return f"hmac_{self.algorithm}"

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        signed = self._read(headers, body)
        return signed if isinstance(signed, Check) else judge(signed, secrets, self.algorithm, now, tolerance_s)

    def _read(self, headers: Headers, body: bytes) -> Signed | Check:
        values = values_of(headers, self.header)  # a list may come as several headers of one name: RFC 9110, 5.3
        if isinstance(values, Check):
            return values
        texts = [text for value in values for text in _BETWEEN_SIGNATURES.split(value) if text]
        if not texts:
            return Check(Verdict.NO_SIGNATURE, detail=f"no {self.header.decode()} header")
        timestamp = self._timestamp(headers)
        if isinstance(timestamp, Check):
            return timestamp
        fillings = {_TIMESTAMP_PLACE: timestamp or b"", _BODY_PLACE: body}
        parts = tuple(fillings.get(piece, piece) for piece in self.signed)
        return Signed(parts, tuple(map(self._signature, texts)), timestamp)

    def _timestamp(self, headers: Headers) -> bytes | Check | None:
        if self.timestamp_header is None:
            return None
        value = only_value(headers, self.timestamp_header)
        if value is None:
            return malformed(f"no {self.timestamp_header.decode()} header")
        return value if isinstance(value, Check) else timestamp_in(value)

    def _signature(self, text: bytes) -> bytes:
        """With or without the prefix: whole first, for a prefix may look like the beginning of a signature."""
        whole = decoded(text, self.encoding)
        if len(whole) == DIGEST_BYTES[self.algorithm]:
            return whole
        return decoded(text.removeprefix(self.prefix), self.encoding)


def options_of(algorithm: Algorithm) -> tuple[Option, ...]:
    return (
        Option("header", "Webhook-Signature", "the header with the signature, or several between commas or spaces"),
        Option("encoding", "hex", "how the signature is written: hex or base64"),
        Option("prefix", f"{algorithm}=", "what stands before a signature; a signature without it is read as well"),
        Option("timestamp_header", "Webhook-Timestamp", "the header with the time in seconds; none where none is sent"),
        Option("signed", "", f"what is signed: {_TIMED}, or {_UNTIMED} where timestamp_header is none"),
    )


def plain_hmac(algorithm: Algorithm, options: Mapping[str, str]) -> PlainHmac:
    """Raises ValueError for options that cannot be put in force."""
    told = {option.name: option.default for option in options_of(algorithm)} | dict(options)
    timed = told["timestamp_header"] != NO_TIMESTAMP
    if timed and told["timestamp_header"].lower() == told["header"].lower():
        raise ValueError(f"found {told['header']!r} for both header and timestamp_header, allowed: two headers")
    return PlainHmac(
        algorithm,
        header=header_name("header", told["header"]),
        encoding=_encoding(told["encoding"]),
        prefix=_prefix(told["prefix"]),
        timestamp_header=header_name("timestamp_header", told["timestamp_header"]) if timed else None,
        signed=_template(told["signed"] or (_TIMED if timed else _UNTIMED), timed=timed),
    )


def header_name(option: str, value: str) -> bytes:
    if not _HEADER_NAME.fullmatch(value):
        raise ValueError(f"{option}: found {value!r}, allowed: the name of a header, such as Webhook-Signature")
    return value.encode()


def _encoding(value: str) -> Encoding:
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
    pieces = tuple(piece.encode() for piece in _PLACE.split(value) if piece)
    places = sorted(piece for piece in pieces if b"{" in piece or b"}" in piece)
    if places != ([_BODY_PLACE, _TIMESTAMP_PLACE] if timed else [_BODY_PLACE]):
        allowed = "{timestamp} and {body}, once each" if timed else "{body}, once, as timestamp_header is none"
        raise ValueError(f"signed: found {value!r}, allowed: text with the places {allowed}")
    return pieces
