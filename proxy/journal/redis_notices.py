"""Notices in the Redis journal: what providers told the fleet, kept before it was acknowledged.

What one sidecar was given as due no other is given for a while: two would relay it twice.
"""

from __future__ import annotations

import json
from dataclasses import replace

from proxy.journal import redis_scripts
from proxy.journal.base import KeptNotice, NoticeResult
from proxy.journal.encoding import word_in
from proxy.journal.redis_connection import Argument
from proxy.journal.redis_lane import Lane
from proxy.journal.redis_writes import Writer


class Notices:
    def __init__(self, writer: Writer, lane: Lane, taker: str) -> None:
        self._writer = writer
        self._lane = lane
        self._taker = taker

    async def keep(self, notice: KeptNotice) -> bool:
        event = json.dumps([notice.provider, notice.account, notice.event_id])
        what = json.dumps([notice.provider, notice.account, notice.event_id, notice.received_at])
        received = repr(float(notice.received_at))
        standing, *times = _standing_of(notice)
        kept = await self._lane.run(redis_scripts.NOTICE_KEEP, event, what, standing, notice.sealed, received, *times)
        return bool(kept)

    async def due(self, limit: int) -> tuple[KeptNotice, ...]:
        found = await self._writer.run(redis_scripts.NOTICES_DUE, str(limit), self._taker, moot=True)
        return tuple(_notice_in(*values) for values in found)

    async def move(self, notice: KeptNotice) -> None:
        await self._lane.run(redis_scripts.NOTICE_MOVE, f"{notice.number:012d}", *_standing_of(notice))


def _standing_of(notice: KeptNotice) -> tuple[Argument, ...]:
    """How it stands, when it is due, when to be relayed, and whether it is done."""
    times = (notice.due_at, notice.relay_due_at)
    standing = json.dumps([notice.result.value, notice.operation_id, notice.tries, *times])
    done = notice.result is not NoticeResult.WAITING and notice.relay_due_at is None
    return (standing, *("" if at is None else repr(float(at)) for at in times), "1" if done else "")


def _notice_in(number: bytes, what: bytes, standing: bytes, sealed: bytes) -> KeptNotice:
    provider, account, event_id, received_at, *_ = json.loads(what)
    result, operation_id, tries, due_at, relay_due_at, *_ = json.loads(standing)
    notice = KeptNotice(int(number), provider, account, event_id, received_at, sealed)
    return replace(
        notice,
        result=word_in(NoticeResult, result, NoticeResult.WAITING),
        operation_id=operation_id,
        tries=tries,
        due_at=due_at,
        relay_due_at=relay_due_at,
    )
