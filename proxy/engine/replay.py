"""Replay: brings what waits in the spool into the journal, when it answers again and before anything else is done.

It is conclude and record, as for an answer that has just come: never a send. The same piece may be replayed twice,
after a crash in between; the second time it says nothing new. A piece that cannot be replayed is kept, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.clock import Clock
from proxy.core.errors import IllegalTransition, JournalUnavailable
from proxy.engine.late import Late, LateEvidence
from proxy.engine.pinned import PinnedPolicies
from proxy.engine.records import Records
from proxy.engine.spool import Spool, SpooledEvidence
from proxy.policy.book import PolicyBook

_log = logging.getLogger("paywitness.spool")

_LOOK_EVERY_S = 1.0
_HOLD_S = 60.0  # until a piece that does not fit the journal is tried again
_HOLD_NOT_TAKEN_S = 5.0  # until one that the journal did not take, though it answers, is


@dataclass(frozen=True, slots=True)
class Replay:
    spool: Spool
    records: Records
    pinned: PinnedPolicies
    book: Callable[[], PolicyBook]
    clock: Clock
    late: Late
    _held_until_mono: dict[str, float] = field(default_factory=dict)  # by the names of pieces
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # the resolver replays too, before it looks

    async def keep_replaying(self) -> None:
        while True:
            await self.clock.sleep(_LOOK_EVERY_S)
            if len(self.spool) and await self.records.journal.healthy():
                await self.replay_all()

    async def replay_all(self) -> int:
        """Replay what waits, oldest first; how many pieces are now in the journal. Stops where the journal is down."""
        async with self._turn:
            return await self._replay_all()

    async def _replay_all(self) -> int:
        replayed = 0
        for name in await self.spool.waiting():
            if self._held_until_mono.get(name, 0.0) > self.clock.mono():
                continue
            try:
                kept_because = await self._replay(name)
            except JournalUnavailable:
                if not await self.records.journal.healthy():
                    break
                self._held_until_mono[name] = self.clock.mono() + _HOLD_NOT_TAKEN_S
                continue
            except Exception as error:  # noqa: BLE001  # one piece must not keep the others, or the loop, from going on
                kept_because = f"a fault of ours, {type(error).__name__}"
            if kept_because is not None:
                self._hold(name, kept_because)
                continue
            await self.spool.done(name)
            self._held_until_mono.pop(name, None)
            replayed += 1
        if replayed:
            _log.warning("replayed from the spool: %d piece(s) of evidence; %d wait", replayed, len(self.spool))
        return replayed

    def _hold(self, name: str, why: str) -> None:
        if name not in self._held_until_mono:
            _log.error("evidence %s stays in the spool: %s", name, why)
        self._held_until_mono[name] = self.clock.mono() + _HOLD_S

    async def _replay(self, name: str) -> str | None:
        """Bring one piece into the journal. None once it is there; else why it is kept."""
        evidence = await self.spool.read(name)
        if evidence is None:
            return "it cannot be read"
        journal = self.records.journal
        operation = await journal.read(evidence.operation_id)
        if operation is None:
            return f"the journal does not know {evidence.operation_id}"
        if any(entry.attempt == evidence.attempt for entry in await journal.history(operation.id)):
            return None  # it was taken after all: only the reply was lost, or we crashed before the file was removed
        policy = await self.pinned.of(operation, self.book())
        if policy is None:
            return f"no policy tells what it means for {operation.id}"
        try:
            await self.late.apply(operation, policy, _late(evidence))
        except IllegalTransition as error:  # of an attempt that the journal has forgotten
            return f"it does not fit {operation.id} as the journal has it: {error}"
        return None


def _late(evidence: SpooledEvidence) -> LateEvidence:
    return LateEvidence(
        evidence.attempt,
        source="spool",
        because="evidence_from_spool",
        sealed_response=evidence.sealed_response,
        sealed_credential=evidence.sealed_credential,
        quiet_at=evidence.quiet_at,
        unheard=evidence.unheard,
        note=f"kept in the spool at {evidence.recorded_at:.3f}",
    )
