"""What the journal's Redis is to its replicas, and whether it came back as another one, and forgot something.

- Once a replica was seen, one must have a write before anything is sent on the strength of it: a primary that was cut
  off from its replicas must not go on alone. The journal itself remembers that, for sidecars that start while it is so.
  One that has been idle since before they joined is told by it with its next write.
- Another replication id is another history. A replica that was promoted may lack what the primary had acknowledged, a
  Redis that started again what was not yet on its disk. The journal remembers the id it was written under, so that also
  a sidecar that starts afterwards notices.
- Not every other id means that: a running primary takes one when its first replica joins, and when its last one has
  been away for an hour. It is the same process then, and has taken over from nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import NoScriptError

from paywitness.core.announcements import announcement_of
from paywitness.core.claim import after_expired_lease
from paywitness.core.guard import hold_of
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import GuardKind, Lease, Operation
from paywitness.journal.redis.scripts import REPLICATION_SEEN
from paywitness.journal.transitions import OperationWrite, history_entry
from paywitness.redis.connection import Command, ReplicationInfo
from paywitness.redis.url import RedisTarget

_log = logging.getLogger("paywitness.journal")


class ReplicationStatus:
    """What one journal knows of its Redis (a `ReplicationGuard` of its pipelines)."""

    def __init__(self, target: RedisTarget) -> None:
        self._target = target
        self._stored = target.replicas is not None  # whether the journal remembers what we know of replicas
        self._rolled_back_mono: float | None = None
        self.replicas_required = target.replicas or 0
        self.replicas_seen_command: Command = ("HGET", f"{target.prefix}meta", "replicas_seen")
        self.replication_id = ""

    @property
    def rolled_back_s(self) -> float | None:
        """How long ago this Redis came back as another one; None: not as far as anybody remembers."""
        if self._rolled_back_mono is None:
            return None
        return asyncio.get_running_loop().time() - self._rolled_back_mono

    @property
    def should_check_replicas_seen(self) -> bool:
        """Whether we count upon no replica, and somebody else may have seen one."""
        return self._target.replicas is None and not self.replicas_required

    def require_replica(self) -> None:
        """The journal says that somebody has."""
        _log.info("the journal's Redis has had replicas: one must have a write before a send")
        self.replicas_required, self._stored = 1, True

    async def update(self, connection: Connection, info: ReplicationInfo) -> None:
        """What it says of itself. Where that is new, the journal is told, and tells what others knew."""
        if info.replicas_online and self._target.replicas is None and not self.replicas_required:
            _log.info("the journal's Redis has %d replicas: one must have a write before a send", info.replicas_online)
            self.replicas_required = 1
        must_store = self.replicas_required > 0 and not self._stored
        if info.replication_id == self.replication_id and not must_store:
            return
        seen, ago_s = await self._store(connection, info, "1" if must_store else "")
        if seen and self._target.replicas is None:
            self.replicas_required = 1
            self._stored = True
        if info.replication_id != self.replication_id and ago_s:
            self._rolled_back_mono = asyncio.get_running_loop().time() - float(ago_s)
        self.replication_id = info.replication_id

    async def _store(self, connection: Connection, info: ReplicationInfo, seen: str) -> Any:
        named = (info.replication_id, info.run_id, "1" if info.promoted else "", seen)
        for command, script in (("EVALSHA", REPLICATION_SEEN.sha), ("EVAL", REPLICATION_SEEN.text)):
            await connection.send_command(command, script, 1, self._target.prefix, *named, check_health=False)
            try:
                return await connection.read_response(disable_decoding=True)
            except NoScriptError:
                continue
        raise AssertionError("a script that was sent whole is known")


# --- Restoring lost operations
# What it comes to, pure, that somebody knows an operation which the journal has forgotten, or has older than that.
#
# A failover to a replica, or a start from a disk that was a moment behind, forgets the last writes. Whoever still holds
# such an operation puts it back as it was. Never over a newer version, and never in the place of another operation that
# was since started under its key or guard: then there are two, and a person has to look.

_EVENT = "put_back"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    write: OperationWrite
    key_taken: bool  # its key belongs to another operation by now, and stays that one's


def plan_restore(
    known: Operation,
    stored: Operation | None,
    newest: Operation | None,
    guarded: Iterable[Operation],
    lease_s: float | None,
    now: float,
) -> RestorePlan | None:
    """The operation as it is to be written again; None where the journal knows it as well, or better. `newest` stands
    under its key, `guarded` under its guard; with `lease_s`, the lease it is known with runs anew. The version is
    the one it is known at: whoever knows a later one can still put that back."""
    if stored is not None and stored.version >= known.version:
        return None
    in_front = newest is not None and newest.id != known.id and newest.generation >= known.generation
    others = [newest] if in_front and newest is not None else []
    others += [other for other in guarded if _conflicts(other, known, now)]
    others += [stored] if stored is not None and _changed_by_others(stored, known) else []
    lease = known.lease
    if lease is not None and lease_s is not None:
        lease = Lease(lease.token, now + lease_s)
    operation = known.changed(
        lease=lease,
        incident=known.incident or (IncidentKind.JOURNAL_ROLLBACK if others else None),
    )
    had = "nothing of it" if stored is None else f"only version {stored.version} of it"
    note = f"put back: after a rollback the journal had {had}"
    if others:
        note += f"; meanwhile others went on with {', '.join(sorted({other.id for other in others}))}"
    entry = replace(
        history_entry(operation, "recovery", (_EVENT,), note), announcement=announcement_of(stored, operation)
    )
    return RestorePlan(OperationWrite(operation, entry, erase_request=operation.state.ended), in_front)


def _changed_by_others(stored: Operation, known: Operation) -> bool:
    """Whether others acted on the older version since: ended it otherwise, or send for it right now."""
    if stored.updated_at <= known.updated_at:
        return False
    theirs = stored.lease is not None and (known.lease is None or stored.lease.token != known.lease.token)
    return (stored.state.ended and stored.state is not known.state) or (theirs and stored.attempt_under_way)


def _conflicts(other: Operation, known: Operation, now: float) -> bool:
    """Whether the other can only have been started because this one was forgotten: this one holds the guard."""
    guard = known.guard
    if guard is None or other.key == known.key or other.created_at < known.created_at or hold_of(known, now) is None:
        return False
    if other.fallback_of == known.id or (other.distinct and guard.kind is not GuardKind.INTENT):
        return False
    return hold_of(after_expired_lease(other, now), now) is not None
