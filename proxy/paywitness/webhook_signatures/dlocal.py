"""dLocal: `Authorization: V2-HMAC-SHA256, Signature: <hex>`, HMAC-SHA256 over X-Login, X-Date and the raw body.
Requests to dLocal are signed in the same way.

The login is not secret. The policy gives it, because a webhook might be signed for another merchant. The date must be
within the tolerance. That dLocal gives a webhook that it sends again a new date is UNVERIFIED.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from paywitness.core.call import Headers
from paywitness.webhook_signatures.scheme import (
    SchemeOption,
    SignatureCheck,
    SignatureVerdict,
    SignedContent,
    check_age,
    decode_or_empty,
    malformed,
    single_header,
    verify_hmac,
)

_HEADER, _DATE = b"Authorization", b"X-Date"
_SIGNATURE = re.compile(rb"V2-HMAC-SHA256, ?Signature: ?([0-9A-Fa-f]{64})")
_LOGIN = re.compile(r"[\x21-\x7e]{1,200}")
_DATE_LENGTH_MAX = 40
OPTIONS = (SchemeOption("login", "", "your X-Login at dLocal", required=True),)


@dataclass(frozen=True, slots=True)
class DLocal:
    login: bytes
    name = "dlocal"

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        value, date = single_header(headers, _HEADER), single_header(headers, _DATE)
        if isinstance(value, SignatureCheck):
            return value
        if isinstance(date, SignatureCheck):
            return date
        if value is None:
            return SignatureCheck(SignatureVerdict.NO_SIGNATURE, detail=f"no {_HEADER.decode()} header")
        found = _SIGNATURE.fullmatch(value)
        signed_at = _parse_date(date) if date is not None else None
        if found is None or date is None or signed_at is None:
            return malformed("no V2-HMAC-SHA256 signature, or no X-Date in ISO 8601")
        signed = SignedContent((self.login, date, body), (decode_or_empty(found[1], "hex"),), None)
        return check_age(verify_hmac(signed, secrets, "sha256", now, tolerance_s), signed_at, now, tolerance_s)


def _parse_date(date: bytes) -> float | None:
    if len(date) > _DATE_LENGTH_MAX:
        return None
    try:
        moment = datetime.fromisoformat(date.decode("ascii"))
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def dlocal(options: Mapping[str, str]) -> DLocal:
    """Raises ValueError if the login cannot be one."""
    login = options.get("login", "")
    if not _LOGIN.fullmatch(login):
        raise ValueError(f"login: found {login!r}, allowed: your X-Login at dLocal")
    return DLocal(login.encode())
