"""A secret that the provider repeats in a header of every delivery. Nothing of the body is signed.

    xendit       Xendit: X-CALLBACK-TOKEN
    flutterwave  Flutterwave v3: verif-hash. (v4 signs, in a way that is UNVERIFIED; it is not read here.)
    token        others, told by an option which header

It proves who speaks to whoever keeps the secret and no more: who has seen one delivery can send any other. Keep the
address behind TLS to the end; a policy that wants to be sure says `hint: true`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.core.call import Headers
from proxy.schemes.base import Check, Option, Verdict
from proxy.schemes.plain_hmac import header_name
from proxy.schemes.signed import fitting, only_value

OPTIONS = (Option("header", "X-Callback-Token", "the header with the secret"),)


@dataclass(frozen=True, slots=True)
class Token:
    name: str
    header: bytes

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        value = only_value(headers, self.header)
        if isinstance(value, Check):
            return value
        if value is None:
            return Check(Verdict.NO_SIGNATURE, detail=f"no {self.header.decode()} header")
        return fitting([hmac.compare_digest(secret, value) for secret in secrets], secrets)


XENDIT = Token("xendit", b"X-CALLBACK-TOKEN")
FLUTTERWAVE = Token("flutterwave", b"verif-hash")


def token(options: Mapping[str, str]) -> Token:
    """Raises ValueError for what is no name of a header."""
    return Token("token", header_name("header", options.get("header", OPTIONS[0].default)))
