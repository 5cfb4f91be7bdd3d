"""Unsigned: what a provider tells without proving that it is the one who tells it, as Mollie's classic webhooks do,
whose whole body is the form `id=tr_...`.

Never genuine: anybody could have sent it. It is at most a reason to ask the provider, and a policy must say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.core.body import Encoding
from proxy.core.call import Headers
from proxy.schemes.base import Check, Option, Verdict

OPTIONS = (Option("body", "json", "how the body is written: json or form"),)


@dataclass(frozen=True, slots=True)
class Unsigned:
    body: Encoding
    name = "unsigned"

    def check(self, headers: Headers, body: bytes, secrets: Sequence[bytes], now: float, tolerance_s: float) -> Check:
        return Check(Verdict.UNSIGNED, detail="the provider signs nothing")

    def told(self, body: bytes) -> tuple[bytes, Encoding]:
        return body, self.body


def unsigned(options: Mapping[str, str]) -> Unsigned:
    """Raises ValueError for another body than the two."""
    written = options.get("body", OPTIONS[0].default)
    if written not in (Encoding.JSON, Encoding.FORM):
        raise ValueError(f"body: found {written!r}, allowed: json or form")
    return Unsigned(Encoding(written))
