"""What the schemes share: bounded reading of headers, and the one place where signatures are compared.

A scheme reads a request into a `Signed`, or into the Check that refuses it; `judge` does the rest. The signature is
compared before the time is looked at, so `too_old` is said only of what one of our secrets really signed.
"""

from __future__ import annotations

import binascii
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from proxy.core.call import Headers
from proxy.schemes.base import Check, Verdict

Algorithm = Literal["sha1", "sha256", "sha512"]
Encoding = Literal["hex", "base64"]

HEADER_BYTES_MAX = 8192  # what HTTP servers commonly allow a whole header line
SIGNATURES_MAX = 20  # during a rotation there are two; each costs a comparison for every secret
DIGEST_BYTES = {"sha1": 20, "sha256": 32, "sha512": 64}

_BLANK = b" \t\r\n\f\v\0"  # HMAC pads its key with NUL, so a key of NULs is the empty key
_TIMESTAMP = re.compile(rb"[0-9]{1,12}")  # whole seconds; twelve digits last for 30,000 years


@dataclass(frozen=True, slots=True)
class Signed:
    """What a request bears: its signatures, decoded, and what they should be over."""

    parts: tuple[bytes, ...]  # signed one after another; apart, so that a large body is not copied
    signatures: tuple[bytes, ...]
    at: bytes | None  # seconds, the very digits that were signed; None where the scheme knows no time


def malformed(detail: str) -> Check:
    return Check(Verdict.MALFORMED, detail=detail)


def values_of(headers: Headers, name: bytes) -> list[bytes] | Check:
    """Every value of the header, whatever the case of its name; together no longer than allowed."""
    wanted = name.lower()
    found = [value.strip(b" \t") for key, value in headers if key.lower() == wanted]
    if sum(map(len, found)) > HEADER_BYTES_MAX:
        return malformed(f"the header {name.decode()} is longer than {HEADER_BYTES_MAX} bytes")
    return found


def only_value(headers: Headers, name: bytes) -> bytes | Check | None:
    """The header's one value; None where it is absent or blank. Two are refused: which one did the signer mean?"""
    values = values_of(headers, name)
    if isinstance(values, Check):
        return values
    if len(values) > 1:
        return malformed(f"the header {name.decode()} came more than once")
    return values[0] or None if values else None


def timestamp_in(value: bytes) -> bytes | Check:
    if _TIMESTAMP.fullmatch(value):
        return value
    return malformed("the timestamp is not a whole number of seconds of at most 12 digits")


def decoded(text: bytes, encoding: Encoding) -> bytes:
    """Empty where it cannot be decoded: no digest is empty, so it fits nothing."""
    try:
        return binascii.unhexlify(text) if encoding == "hex" else binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return b""


def digest_of(parts: Iterable[bytes], key: bytes, algorithm: Algorithm) -> bytes:
    digest = hmac.new(key, digestmod=algorithm)
    for part in parts:
        digest.update(part)
    return digest.digest()


def is_usable(key: bytes) -> bool:
    """Anybody can sign with an empty key; an unset variable or an empty file must not become one."""
    return bool(key.strip(_BLANK))


def judge(signed: Signed, keys: Sequence[bytes], algorithm: Algorithm, now: float, tolerance_s: float) -> Check:
    """Compare, then look at the time. Every key meets every signature, so the time taken does not tell which fitted."""
    if len(signed.signatures) > SIGNATURES_MAX:
        return malformed(f"more than {SIGNATURES_MAX} signatures")
    found = fitting([_fits(signed, key, algorithm) for key in keys], keys)
    return found if signed.at is None else in_time(found, int(signed.at), now, tolerance_s)


def fitting(fits: Sequence[bool], keys: Sequence[bytes]) -> Check:
    """What it means that some of the keys fit: the first of them is named. An unusable key fits nothing."""
    if not any(map(is_usable, keys)):
        return Check(Verdict.BAD_SIGNATURE, detail="no secret to check with")
    for index, (fit, key) in enumerate(zip(fits, keys, strict=True)):
        if fit and is_usable(key):
            return Check(Verdict.GENUINE, index)
    return Check(Verdict.BAD_SIGNATURE, detail="no signature was made with a secret of ours over this body")


def in_time(found: Check, at: float, now: float, tolerance_s: float) -> Check:
    """The same check, unless it was signed too long ago or too far ahead."""
    age_s = now - at
    if found.verdict is not Verdict.GENUINE or abs(age_s) <= tolerance_s:  # a time that is no number is refused
        return found
    when = "ago" if age_s >= 0 else "ahead"
    return Check(Verdict.TOO_OLD, found.secret_index, f"signed {abs(age_s):.0f} s {when}, allowed: {tolerance_s:g} s")


def _fits(signed: Signed, key: bytes, algorithm: Algorithm) -> bool:
    digest = digest_of(signed.parts, key, algorithm)
    fits = [hmac.compare_digest(digest, signature) for signature in signed.signatures]
    return any(fits)
