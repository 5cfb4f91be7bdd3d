"""The interface of a scheme: its check, its verdicts, its options. And the functions that all schemes share: bounded
reading of headers, and the only comparison of signatures.
"""

from __future__ import annotations

import binascii
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from paywitness.core.bodies.tree import Encoding
from paywitness.core.call import Headers


class SignatureVerdict(StrEnum):
    GENUINE = "genuine"
    NO_SIGNATURE = "no_signature"
    BAD_SIGNATURE = "bad_signature"  # there is a signature, and none of our secrets made it
    # signed with a secret of ours, but too long ago or too far ahead: an old webhook again, or a wrong clock
    TOO_OLD = "too_old"
    MALFORMED = "malformed"  # not in the scheme's format, so nothing was compared
    UNSIGNED = "unsigned"  # the provider signs nothing, so anybody could have sent it. At most a reason to inquire


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    verdict: SignatureVerdict
    secret_index: int | None = None  # the secret that fitted: shows when an old secret is no longer needed
    detail: str = ""  # for a person; never holds a secret or a signature


class SignatureScheme(Protocol):
    @property
    def name(self) -> str: ...

    def check(
        self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float
    ) -> SignatureCheck:
        """Never raises, whatever headers and body hold. `now` is wall time. The body must be the raw bytes."""
        ...


@runtime_checkable
class PayloadExtractor(Protocol):
    """A scheme whose webhooks are not plain JSON."""

    def extract_payload(self, body: bytes) -> tuple[bytes, Encoding]:
        """The payload of the body, and its encoding. Raises BodyError if the body holds none."""
        ...


@runtime_checkable
class CertificateScheme(Protocol):
    """A scheme whose sender names the certificate to check with. The engine fetches it, because this room does no
    I/O."""

    def certificate_url(self, headers: Headers) -> str | None:
        """The certificate's address, if it is the provider's own. None: there is nothing to fetch, and `check` says
        why."""
        ...

    def with_certificate(self, pem: bytes) -> SignatureScheme: ...


@dataclass(frozen=True, slots=True)
class SchemeOption:
    """One option that a policy may set for a scheme."""

    name: str
    default: str
    description: str
    required: bool = False


# --- Reading and comparing
# Shared functions: bounded reading of headers, and the only comparison of signatures.
#
# A scheme reads a request into a `SignedContent`, or into the SignatureCheck that refuses it. `check_from_matches` does
# the rest. It compares the signature before it checks the time, so `too_old` means that one of our secrets really
# signed it.

Algorithm = Literal["sha1", "sha256", "sha512"]
SignatureEncoding = Literal["hex", "base64"]

HEADER_BYTES_MAX = 8192  # the common limit of HTTP servers for a whole header line
SIGNATURES_MAX = 20  # two during a rotation; each costs a comparison for every secret
DIGEST_BYTES = {"sha1": 20, "sha256": 32, "sha512": 64}

_BLANK = b" \t\r\n\f\v\0"  # HMAC pads its key with NUL, so a key of NULs is the empty key
_TIMESTAMP = re.compile(rb"[0-9]{1,12}")  # whole seconds; twelve digits last for 30,000 years


@dataclass(frozen=True, slots=True)
class SignedContent:
    """The content of a signed request: its decoded signatures, and the text that they sign."""

    parts: tuple[bytes, ...]  # signed one after another; separate, so that a large body is not copied
    signatures: tuple[bytes, ...]
    timestamp: bytes | None  # seconds, exactly the digits that were signed; None if the scheme signs no time


def malformed(detail: str) -> SignatureCheck:
    return SignatureCheck(SignatureVerdict.MALFORMED, detail=detail)


def header_values(headers: Headers, name: bytes) -> list[bytes] | SignatureCheck:
    """Every value of the header, in any case of its name. Refused if they are longer than allowed together."""
    wanted = name.lower()
    found = [value.strip(b" \t") for key, value in headers if key.lower() == wanted]
    if sum(map(len, found)) > HEADER_BYTES_MAX:
        return malformed(f"the header {name.decode()} is longer than {HEADER_BYTES_MAX} bytes")
    return found


def single_header(headers: Headers, name: bytes) -> bytes | SignatureCheck | None:
    """The header's only value. None if it is absent or blank. Two values are refused, because the right one is
    unknown."""
    values = header_values(headers, name)
    if isinstance(values, SignatureCheck):
        return values
    if len(values) > 1:
        return malformed(f"the header {name.decode()} came more than once")
    return values[0] or None if values else None


def parse_timestamp(value: bytes) -> bytes | SignatureCheck:
    if _TIMESTAMP.fullmatch(value):
        return value
    return malformed("the timestamp is not a whole number of seconds of at most 12 digits")


def decode_or_empty(text: bytes, encoding: SignatureEncoding) -> bytes:
    """The decoded text, or empty if it cannot be decoded. No digest is empty, so an empty one fits nothing."""
    try:
        return binascii.unhexlify(text) if encoding == "hex" else binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return b""


def hmac_digest(parts: Iterable[bytes], key: bytes, algorithm: Algorithm) -> bytes:
    digest = hmac.new(key, digestmod=algorithm)
    for part in parts:
        digest.update(part)
    return digest.digest()


def is_usable_key(key: bytes) -> bool:
    """Whether a key may be used. Anybody can sign with an empty key, and an unset variable or an empty file would give
    one."""
    return bool(key.strip(_BLANK))


def verify_hmac(
    signed: SignedContent, keys: Sequence[bytes], algorithm: Algorithm, now: float, tolerance_s: float
) -> SignatureCheck:
    """Compare, then check the time. Every key is compared with every signature, so the duration does not show which one
    fitted."""
    if len(signed.signatures) > SIGNATURES_MAX:
        return malformed(f"more than {SIGNATURES_MAX} signatures")
    found = check_from_matches([_matches(signed, key, algorithm) for key in keys], keys)
    return found if signed.timestamp is None else check_age(found, int(signed.timestamp), now, tolerance_s)


def check_from_matches(matches: Sequence[bool], keys: Sequence[bytes]) -> SignatureCheck:
    """The verdict for the keys that fit. It names the first of them. An unusable key fits nothing."""
    if not any(map(is_usable_key, keys)):
        return SignatureCheck(SignatureVerdict.BAD_SIGNATURE, detail="no secret to check with")
    for index, (match, key) in enumerate(zip(matches, keys, strict=True)):
        if match and is_usable_key(key):
            return SignatureCheck(SignatureVerdict.GENUINE, index)
    return SignatureCheck(
        SignatureVerdict.BAD_SIGNATURE, detail="no signature was made with a secret of ours over this body"
    )


def check_age(found: SignatureCheck, signed_at: float, now: float, tolerance_s: float) -> SignatureCheck:
    """The same check, unless it was signed too long ago or too far ahead."""
    age_s = now - signed_at
    if (
        found.verdict is not SignatureVerdict.GENUINE or abs(age_s) <= tolerance_s
    ):  # a time that is not a number is refused
        return found
    when = "ago" if age_s >= 0 else "ahead"
    return SignatureCheck(
        SignatureVerdict.TOO_OLD, found.secret_index, f"signed {abs(age_s):.0f} s {when}, allowed: {tolerance_s:g} s"
    )


def _matches(signed: SignedContent, key: bytes, algorithm: Algorithm) -> bool:
    digest = hmac_digest(signed.parts, key, algorithm)
    matches = [hmac.compare_digest(digest, signature) for signature in signed.signatures]
    return any(matches)
