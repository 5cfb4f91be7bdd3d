"""The words of the room: what a check says, what a scheme is, what a scheme may be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from proxy.core.body import Encoding
from proxy.core.call import Headers


class Verdict(StrEnum):
    GENUINE = "genuine"
    NO_SIGNATURE = "no_signature"
    BAD_SIGNATURE = "bad_signature"  # there is one, and no secret of ours made it
    TOO_OLD = "too_old"  # genuinely signed, but too long ago or too far ahead: a repeat of an old one, or a wrong clock
    MALFORMED = "malformed"  # not what the scheme allows, so nothing was compared
    UNSIGNED = "unsigned"  # the provider signs nothing: anybody could have sent it. At most a reason to ask


@dataclass(frozen=True, slots=True)
class Check:
    verdict: Verdict
    secret_index: int | None = None  # which secret fitted: says when an old one may be thrown away
    detail: str = ""  # for a person; never holds a secret or a signature


class Scheme(Protocol):
    @property
    def name(self) -> str: ...

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        """Never raises, whatever headers and body hold. `now` is wall time; the body is as it came off the wire."""
        ...


@runtime_checkable
class Wrapped(Protocol):
    """A scheme whose deliveries are not simply JSON."""

    def told(self, body: bytes) -> tuple[bytes, Encoding]:
        """What the body tells, and how that is written. Raises BodyError where nothing of the kind is in it."""
        ...


@runtime_checkable
class Certified(Protocol):
    """A scheme whose sender names the certificate to check with. Somebody else fetches it; this room does no I/O."""

    def certificate_at(self, headers: Headers) -> str | None:
        """Its address, where it is the provider's own; None: there is nothing to fetch, and `check` says why."""
        ...

    def with_certificate(self, pem: bytes) -> Scheme: ...


@dataclass(frozen=True, slots=True)
class Option:
    """One thing a policy may tell a scheme."""

    name: str
    default: str
    description: str
    required: bool = False
