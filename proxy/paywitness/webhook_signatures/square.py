"""Square: `x-square-hmacsha256-signature`, base64 HMAC-SHA256 over the notification URL and then the raw body.

The URL is the one registered at Square. Behind a TLS terminator we see another one, so the policy gives it. If accounts
have addresses of their own, the policy gives several, and any of them may fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paywitness.core.call import Headers
from paywitness.webhook_signatures.scheme import (
    SchemeOption,
    SignatureCheck,
    SignatureVerdict,
    SignedContent,
    decode_or_empty,
    single_header,
    verify_hmac,
)

_HEADER = b"x-square-hmacsha256-signature"
_URL = re.compile(r"https?://[\x21-\x7e]{1,2000}")
_URLS_MAX = 20
OPTIONS = (SchemeOption("url", "", "the address that is registered at Square; several between spaces", required=True),)


@dataclass(frozen=True, slots=True)
class Square:
    urls: tuple[bytes, ...]
    name = "square"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        value = single_header(headers, _HEADER)
        if isinstance(value, SignatureCheck):
            return value
        if value is None:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {_HEADER.decode()} header")
        signature = decode_or_empty(value, "base64")
        checks = [
            verify_hmac(SignedContent((url, body), (signature,), None), secrets, "sha256", now, tolerance_s)
            for url in self.urls
        ]
        return next((check for check in checks if check.verdict is SignatureVerdict.GENUINE), checks[0])


def square(options: Mapping[str, str]) -> Square:
    """Raises ValueError if an address is not valid."""
    urls = options.get("url", "").split()
    if not 1 <= len(urls) <= _URLS_MAX or not all(map(_URL.fullmatch, urls)):
        raise ValueError(f"url: found {options.get('url', '')!r}, allowed: addresses such as https://shop.test/hooks")
    return Square(tuple(url.encode() for url in urls))
