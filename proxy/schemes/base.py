"""The words of the room: what a check says, what a scheme is, what a scheme may be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from proxy.core.call import Headers


class Verdict(StrEnum):
    GENUINE = "genuine"
    NO_SIGNATURE = "no_signature"
    BAD_SIGNATURE = "bad_signature"  # there is one, and no secret of ours made it
    TOO_OLD = "too_old"  # genuinely signed, but too long ago or too far ahead: a repeat of an old one, or a wrong clock
    MALFORMED = "malformed"  # not what the scheme allows, so nothing was compared


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


@dataclass(frozen=True, slots=True)
class Option:
    """One thing a policy may tell a scheme."""

    name: str
    default: str
    description: str
