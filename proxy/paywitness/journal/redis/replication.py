"""What the journal's Redis is to its replicas, and whether it came back as another one, and forgot something.

- Once a replica was seen, one must have a write before anything is sent on the strength of it: a primary that was cut
  off from its replicas must not go on alone. The journal itself remembers that, for sidecars that start while it is so.
  One that has been idle since before they joined is told by it with its next write.
- Another replication id is another history. A replica that was promoted may lack what the primary had acknowledged, a
  Redis that started again what was not yet on its disk. The journal remembers the id it was written under, so that also
  a sidecar that starts afterwards notices.
- A Redis may also lose its keys, or get older ones back, without another id (FLUSHALL, an older file loaded in place).
  The journal has an **epoch**, and each answer tells its time: every step says which epoch and time it knows, and its
  script fails if the journal is not that one any more. `JournalMark` keeps both for the next start of this sidecar.
- Not every other id means that: a running primary takes one when its first replica joins, and when its last one has
  been away for an hour. It is the same process then, and has taken over from nobody.
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
    """The journal is not the one that we know. What was asked of it was not done."""


_LOST = re.compile(r"JOURNALLOST (\w+)")
_MARK_EVERY_S = 1.0


class JournalMark:
    """What this sidecar knows of its journal, in a small local file: a start notices a journal that went back."""

    def __init__(self, path: Path, target: RedisTarget) -> None:
        self._path = path
        self._journal = hashlib.sha256(f"{target} {target.prefix}".encode()).hexdigest()[:16]
        self._stored_mono = 0.0

    def read(self) -> tuple[str, str] | None:
        """Epoch and time. None: nothing is remembered of this journal."""
        try:
            journal, epoch, mark = self._path.read_text("ascii").split()
            return (epoch, mark) if journal == self._journal and epoch.isalnum() and float(mark) >= 0 else None
        except (OSError, ValueError):
            return None

    def store_soon(self, epoch: str, mark: str) -> None:
        """Now and then, off the event loop: a little less than the latest is enough to notice."""
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
    """What one journal knows of its Redis (a `ReplicationGuard` of its pipelines)."""

    def __init__(self, target: RedisTarget, mark_file: JournalMark | None = None) -> None:
        self._target = target
        self._stored = target.replicas is not None  # whether the journal remembers what we know of replicas
        self._rolled_back_mono: float | None = None
        self.replicas_required = target.replicas or 0
        self.replicas_seen_command: Command = ("HGET", f"{target.prefix}meta", "replicas_seen")
        self.replication_id = ""
        self.epoch = ""  # of the journal, as it was told last; "" before that
        self.mark = "0"  # the latest time that the journal told
        self.losses = 0  # how often it turned out to have forgotten something
        self._mark_file = mark_file
        remembered = mark_file.read() if mark_file is not None else None
        if remembered is not None:
            self.epoch, self.mark = remembered

    def note_time(self, now: bytes) -> None:
        """The journal told a later time than before."""
        self.mark = now.decode()
        if self._mark_file is not None:
            self._mark_file.store_soon(self.epoch, self.mark)

    def journal_unavailable(self, error: RedisUnavailable) -> JournalUnavailable:
        """What to raise for an error of Redis. One of them says that the journal is not the one that we know."""
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
        """Remember for the next start."""
        if self._mark_file is not None and self.epoch:
            self._mark_file.store(self.epoch, self.mark)

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
        seen, ago_s, epoch = await self._store(connection, info, "1" if must_store else "")
        if epoch.decode() != self.epoch:
            self._begin_epoch(epoch.decode())
        if seen and self._target.replicas is None:
            self.replicas_required = 1
            self._stored = True
        if info.replication_id != self.replication_id and ago_s:
            self._rolled_back_mono = asyncio.get_running_loop().time() - float(ago_s)
            self.mark = "0"  # noticed already: that it lost its last moments is no news
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
    """Whether an answer lets the claimer send. Also what it owns already, and comes back for after a lost reply: that
    the replicas have it was not known then."""
    token = request.token.encode()

    def needs_replication(reply: Any) -> bool:
        return reply[0] in {b"owned", b"written"} or (
            reply[0] == b"found" and any(values[3] == token for values in reply[1][2])
        )

    return needs_replication


def replication_need(change: OperationChange) -> NeedsReplication | None:
    """A change that leaves an attempt under way precedes a send, whatever is answered: one that comes back stale may
    be known again by its writer, whose first reply was lost."""
    return (lambda reply: True) if change.operation.attempt_under_way else None


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
    """Whether others acted on the older version since: ended it otherwise, or send for it right now."""
    if stored.updated_at <= known.updated_at:
        return False
    theirs = stored.lease is not None and (known.lease is None or stored.lease.token != known.lease.token)
    return (stored.state.ended and stored.state is not known.state) or (theirs and stored.attempt_under_way)


def _conflicts(other: Operation, known: Operation, now: float) -> bool:
    """Whether the other can only have been started because this one was forgotten: this one holds the guard."""
    guard = known.guard
    holds = hold_of(known, now) not in {None, GuardHold.GIVEN_BACK}
    if guard is None or other.key == known.key or other.created_at < known.created_at or not holds:
        return False
    if other.fallback_of == known.id or (other.distinct and guard.kind is not GuardKind.INTENT):
        return False
    return hold_of(after_expired_lease(other, now), now) not in {None, GuardHold.GIVEN_BACK}
