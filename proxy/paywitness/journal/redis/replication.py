"""The replicas of the journal's Redis, and how the sidecar detects that Redis has lost writes.

- Once a sidecar has seen a replica, a replica must have a write before the engine sends because of it: a primary that
  was cut off from its replicas must not go on alone. The journal stores this rule. So a sidecar that starts without
  replicas in sight also knows it, and a sidecar that was idle when they joined learns it with its next write.
- Another replication id means another history. A promoted replica may lack writes that the old primary had
  acknowledged. A Redis that has started again may lack writes that were not yet on its disk. The journal stores the id
  under which it was written, so that a sidecar that starts afterwards notices too.
- A Redis may also lose its keys, or get older ones back, under the same id (FLUSHALL, an older file loaded in place).
  So the journal has an **epoch**, and each answer has its time. Every step names the epoch and time that it knows, and
  its script fails if the journal is not that one any more. `JournalMark` keeps both for the next start of this sidecar.
- Not every new id means lost writes. A running primary takes a new one when its first replica joins, and when its last
  replica has been away for an hour. It is the same process then, and has not taken over from another.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from redis.asyncio.connection import Connection
from redis.exceptions import NoScriptError

from paywitness.core.claim import ClaimRequest, after_expired_lease
from paywitness.core.consequences import announcement_of
from paywitness.core.errors import JournalUnavailable
from paywitness.core.guard import GuardHold, hold_of
from paywitness.core.lifecycle import IncidentKind
from paywitness.core.operation import GuardKind, Lease, Operation
from paywitness.journal.base import OperationChange
from paywitness.journal.redis.scripts import REPLICATION_SEEN, journal_unavailable
from paywitness.journal.transitions import OperationWrite, history_entry
from paywitness.redis.connection import Command, RedisUnavailable, ReplicationInfo
from paywitness.redis.pipeline import NeedsReplication
from paywitness.redis.url import RedisTarget
from paywitness.repeated_lines import REPEATS

_log = logging.getLogger("paywitness.journal")


class JournalForgot(JournalUnavailable):
    """The journal is not the one that we know: it has lost data. The script has done nothing."""


_LOST = re.compile(r"JOURNALLOST (\w+)")
_MARK_EVERY_S = 1.0


class JournalMark:
    """The epoch and time that this sidecar knows of its journal, in a small local file. With it a start notices that
    the journal was rolled back."""

    def __init__(self, path: Path, target: RedisTarget) -> None:
        self._path = path
        self._journal = hashlib.sha256(f"{target} {target.prefix}".encode()).hexdigest()[:16]
        self._stored_mono = 0.0

    def read(self) -> tuple[str, str] | None:
        """The epoch and time. None: the file has none for this journal."""
        try:
            journal, epoch, mark = self._path.read_text("ascii").split()
            return (epoch, mark) if journal == self._journal and epoch.isalnum() and float(mark) >= 0 else None
        except (OSError, ValueError):
            return None

    def store_soon(self, epoch: str, mark: str) -> None:
        """Write the file at most once a second, off the event loop. A slightly older time is enough to notice a
        rollback."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._stored_mono >= _MARK_EVERY_S:
            self._stored_mono = loop.time()
            loop.run_in_executor(None, self.store, epoch, mark)

    def store(self, epoch: str, mark: str) -> None:
        partial = self._path.with_name(self._path.name + ".partial")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_text(f"{self._journal} {epoch} {mark}\n", "ascii")
            partial.replace(self._path)
        except OSError as error:
            text = "what is known of the journal cannot be kept in %s: %s"
            _log.warning(text, self._path, error.strerror, extra=REPEATS)


class ReplicationStatus:
    """The state of one journal's Redis, as this sidecar knows it (a `ReplicationGuard` of its pipelines)."""

    def __init__(self, target: RedisTarget, mark_file: JournalMark | None = None) -> None:
        self._target = target
        self._stored = target.replicas is not None  # whether the journal already stores that replicas were seen
        self._rolled_back_mono: float | None = None
        self.replicas_required = target.replicas or 0
        self.replicas_seen_command: Command = ("HGET", f"{target.prefix}meta", "replicas_seen")
        self.replication_id = ""
        self.epoch = ""  # the journal's epoch in its last answer; "" before the first
        self.mark = "0"  # the latest time in an answer of the journal
        self.losses = 0  # how often the journal turned out to have lost data
        self._mark_file = mark_file
        remembered = mark_file.read() if mark_file is not None else None
        if remembered is not None:
            self.epoch, self.mark = remembered

    def note_time(self, now: bytes) -> None:
        """Remember the time in an answer; it is later than all before."""
        self.mark = now.decode()
        if self._mark_file is not None:
            self._mark_file.store_soon(self.epoch, self.mark)

    def journal_unavailable(self, error: RedisUnavailable) -> JournalUnavailable:
        """The error to raise for an error of Redis: JournalForgot if Redis says that it is not the journal we know."""
        lost = _LOST.search(str(error))
        if lost is None:
            return journal_unavailable(error)
        if lost[1] != self.epoch:
            _log.error("the journal's Redis has lost what it knew, or older keys were put back")
            self._begin_epoch(lost[1])
            self._rolled_back_mono = asyncio.get_running_loop().time()
        return JournalForgot(str(error))

    def _begin_epoch(self, epoch: str) -> None:
        self.epoch, self.mark = epoch, "0"
        self.losses += 1

    def close(self) -> None:
        """Store the mark for the next start."""
        if self._mark_file is not None and self.epoch:
            self._mark_file.store(self.epoch, self.mark)

    @property
    def rolled_back_s(self) -> float | None:
        """How long ago this Redis came back as another one; None: no sidecar has seen that."""
        if self._rolled_back_mono is None:
            return None
        return asyncio.get_running_loop().time() - self._rolled_back_mono

    @property
    def should_check_replicas_seen(self) -> bool:
        """Whether we require no replica yet, although another sidecar may have seen one."""
        return self._target.replicas is None and not self.replicas_required

    def require_replica(self) -> None:
        """Require a replica from now on: the journal says that a sidecar has seen one."""
        _log.info("the journal's Redis has had replicas: one must have a write before a send")
        self.replicas_required, self._stored = 1, True

    async def update(self, connection: Connection, info: ReplicationInfo) -> None:
        """Take in the replication information of Redis. If it is new, store it in the journal, and read from there the
        observations of other sidecars."""
        if info.replicas_online and self._target.replicas is None and not self.replicas_required:
            _log.info("the journal's Redis has %d replicas: one must have a write before a send", info.replicas_online)
            self.replicas_required = 1
        must_store = self.replicas_required > 0 and not self._stored
        if info.replication_id == self.replication_id and not must_store:
            return
        seen, ago_s, epoch = await self._store(connection, info, "1" if must_store else "")
        if epoch.decode() != self.epoch:
            self._begin_epoch(epoch.decode())
        if seen and self._target.replicas is None:
            self.replicas_required = 1
            self._stored = True
        if info.replication_id != self.replication_id and ago_s:
            self._rolled_back_mono = asyncio.get_running_loop().time() - float(ago_s)
            self.mark = "0"  # this rollback is noted already: the lost times must not count as another one
        self.replication_id = info.replication_id

    async def _store(self, connection: Connection, info: ReplicationInfo, seen: str) -> Any:
        named = (info.replication_id, info.run_id, "1" if info.promoted else "", seen, self.epoch, self.mark)
        for command, script in (("EVALSHA", REPLICATION_SEEN.sha), ("EVAL", REPLICATION_SEEN.text)):
            await connection.send_command(command, script, 1, self._target.prefix, *named, check_health=False)
            try:
                return await connection.read_response(disable_decoding=True)
            except NoScriptError:
                continue
        raise AssertionError("a script that was sent whole is known")


# --- Which answers bind


def owned_by(request: ClaimRequest) -> NeedsReplication:
    """Whether an answer lets the claimer send, so that the replicas must have it. This includes an operation that the
    claimer owns already and claims again after it lost the first answer: at that time nobody knew whether the replicas
    had it."""
    token = request.token.encode()

    def needs_replication(reply: Any) -> bool:
        return reply[0] in {b"owned", b"written"} or (
            reply[0] == b"found" and any(values[3] == token for values in reply[1][2])
        )

    return needs_replication


def replication_need(change: OperationChange) -> NeedsReplication | None:
    """Whether the replicas must have the change: an attempt is under way after it, so a send follows. This holds for
    any answer: a stale write may be a repeat by the same writer, who lost the first answer and then goes on to send."""
    return (lambda reply: True) if change.operation.attempt_under_way else None


# --- Restoring lost operations
# Plans how to restore an operation that the journal has lost, or holds in an older version. Pure.
#
# A failover to a replica, or a start from a disk that was a moment behind, loses the last writes. A sidecar that still
# knows such an operation puts it back as it was. It never writes over a newer version, and never replaces another
# operation that has started under its key or guard since. In that case both stay, and a person has to check them.

_EVENT = "put_back"


@dataclass(frozen=True, slots=True)
class RestorePlan:
    write: OperationWrite
    key_taken: bool  # another operation has the key by now, and keeps it


def plan_restore(
    known: Operation,
    stored: Operation | None,
    newest: Operation | None,
    guarded: Iterable[Operation],
    lease_s: float | None,
    now: float,
) -> RestorePlan | None:
    """The write that restores the operation; None if the journal has the same version or a newer one. `newest`: the
    newest operation under its key. `guarded`: the operations under its guard. `lease_s`: its lease, if it has one, runs
    anew for this long. It keeps the version of `known`, so that a sidecar that knows a later version can still restore
    that one."""
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
        other_payment=known.other_payment if known.incident or not others else others[0].as_other_payment,
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
    """Whether others have acted on the older version since: they ended it differently, or are sending for it now."""
    if stored.updated_at <= known.updated_at:
        return False
    theirs = stored.lease is not None and (known.lease is None or stored.lease.token != known.lease.token)
    return (stored.state.ended and stored.state is not known.state) or (theirs and stored.attempt_under_way)


def _conflicts(other: Operation, known: Operation, now: float) -> bool:
    """Whether the other operation could start only because the journal had lost this one, which holds the guard."""
    guard = known.guard
    holds = hold_of(known, now) not in {None, GuardHold.GIVEN_BACK}
    if guard is None or other.key == known.key or other.created_at < known.created_at or not holds:
        return False
    if other.fallback_of == known.id or (other.distinct and guard.kind is not GuardKind.INTENT):
        return False
    return hold_of(after_expired_lease(other, now), now) not in {None, GuardHold.GIVEN_BACK}
