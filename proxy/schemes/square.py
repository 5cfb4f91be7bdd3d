"""Square: `x-square-hmacsha256-signature`, base64 HMAC-SHA256 over the notification URL and then the raw body.

The URL is the one registered at Square, which is not the one that this side of a TLS terminator sees: the policy says
it. Where accounts have addresses of their own it says several, and any of them may fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.core.call import Headers
from proxy.schemes.base import Check, Option, Verdict
from proxy.schemes.signed import Signed, decoded, judge, only_value

_HEADER = b"x-square-hmacsha256-signature"
_URL = re.compile(r"https?://[\x21-\x7e]{1,2000}")
_URLS_MAX = 20
OPTIONS = (Option("url", "", "the address as it is registered at Square; several between spaces", required=True),)


@dataclass(frozen=True, slots=True)
class Square:
    urls: tuple[bytes, ...]
    name = "square"

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        value = only_value(headers, _HEADER)
        if isinstance(value, Check):
            return value
        if value is None:
            return Check(Verdict.NO_SIGNATURE, detail=f"no {_HEADER.decode()} header")
        signature = decoded(value, "base64")
        checks = [
            judge(Signed((url, body), (signature,), None), secrets, "sha256", now, tolerance_s) for url in self.urls
        ]
        return next((check for check in checks if check.verdict is Verdict.GENUINE), checks[0])


def square(options: Mapping[str, str]) -> Square:
    """Raises ValueError for addresses that cannot be meant."""
    urls = options.get("url", "").split()
    if not 1 <= len(urls) <= _URLS_MAX or not all(map(_URL.fullmatch, urls)):
        raise ValueError(f"url: found {options.get('url', '')!r}, allowed: addresses such as https://shop.test/hooks")
    return Square(tuple(url.encode() for url in urls))
