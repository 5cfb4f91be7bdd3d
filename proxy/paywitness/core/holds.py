"""Holds: whom a provider asked to wait (`Retry-After`), and until when.

A party is whom a refusal concerns, by the policy's `limited_by`: one credential (the default), one account, or everyone
who calls the provider. A hold of a party is never shorter than the `Retry-After` that it got. Other parties are held
only if several parties were refused within ten seconds, and then for at most half a minute (see `core/circuit.py`).

Pure. Times are milliseconds of the clock of the process or store that keeps the holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

HOLDS_MAX = 10_000  # of one circuit: the one with the oldest refusal is dropped first
ASKED_WITHIN_MS = 10_000  # a refusal counts among several for this long
HOLD_MAX_S = 1e6  # eleven days: a longer Retry-After is nonsense, and must not overflow
_NAME_LENGTH = 20  # of a hash: the limits' store must tell parties apart, and needs to know nothing else

EVERYONE = ""  # the party of a refusal that concerns all calls of a provider


class LimitedBy(StrEnum):
    """Whom a 429 concerns."""

    CREDENTIAL = "credential"
    ACCOUNT = "account"
    PROVIDER = "provider"


_MARKS = {LimitedBy.CREDENTIAL: "c:", LimitedBy.ACCOUNT: "a:"}


class Hold(NamedTuple):
    until_ms: int
    asked_ms: int  # when the provider last asked for it; no two holds have the same


class HoldStatus(NamedTuple):
    """The holds of one kind of party, for people."""

    limited_by: LimitedBy
    parties: int
    longest_s: float


def party_of(limited_by: LimitedBy, credential: str, account: str) -> str:
    """The party of a call. `credential` is a keyed hash. Of an account, too, only a hash leaves the sidecar."""
    if limited_by is LimitedBy.CREDENTIAL:
        return _MARKS[limited_by] + credential[:_NAME_LENGTH]
    return _MARKS[limited_by] + _short_hash(account) if limited_by is LimitedBy.ACCOUNT else EVERYONE


@lru_cache(maxsize=1024)
def _short_hash(account: str) -> str:
    return hashlib.sha256(account.encode("utf-8", "surrogatepass")).hexdigest()[:_NAME_LENGTH]


def limited_by_of(party: str) -> LimitedBy:
    return next((kind for kind, mark in _MARKS.items() if party.startswith(mark)), LimitedBy.PROVIDER)


def with_asks(holds: Mapping[str, Hold], asks: Mapping[str, int], now_ms: int) -> Mapping[str, Hold]:
    """The holds after a sidecar reported new requests to wait: until when, by party. No report shortens a hold."""
    kept = {party: hold for party, hold in holds.items() if not _is_over(hold, now_ms)}
    latest_ms = max((hold.asked_ms for hold in kept.values()), default=0)
    for party, until_ms in asks.items():
        latest_ms = max(now_ms, latest_ms + 1)
        before = kept.get(party)
        kept[party] = Hold(max(until_ms, before.until_ms if before is not None else 0), latest_ms)
    for party in sorted(kept, key=lambda party: kept[party].asked_ms)[: max(0, len(kept) - HOLDS_MAX)]:
        del kept[party]
    return kept


def _is_over(hold: Hold, now_ms: int) -> bool:
    return hold.until_ms <= now_ms and now_ms - hold.asked_ms > ASKED_WITHIN_MS


def asked_lately(holds: Mapping[str, Hold], now_ms: int) -> list[Hold]:
    """The holds that count among several: one for each party, if its refusal is recent."""
    return [hold for party, hold in holds.items() if party and now_ms - hold.asked_ms <= ASKED_WITHIN_MS]


def hold_statuses(held: Mapping[str, int], now_ms: int) -> tuple[HoldStatus, ...]:
    """How many parties are held, and the longest time left, by kind of party."""
    left: dict[LimitedBy, list[int]] = {}
    for party, until_ms in held.items():
        if until_ms > now_ms:
            left.setdefault(limited_by_of(party), []).append(until_ms - now_ms)
    return tuple(HoldStatus(kind, len(left[kind]), max(left[kind]) / 1000) for kind in LimitedBy if kind in left)
