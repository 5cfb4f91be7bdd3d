"""What the stores share: the steps themselves, and that no store departs from them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.core.claim import Verdict
from proxy.core.errors import IllegalTransition, PaywitnessError, StaleWrite
from proxy.core.lifecycle import Event, advance
from proxy.core.operation import Lease, Operation, State
from proxy.journal.base import Change, Journal, Listing
from proxy.journal.memory import MemoryJournal
from proxy.journal.sqlite import SqliteJournal
from proxy.journal.steps import JournalTime
from tests.journal.sample import LEASE_S, HandClock, asking, owned, touching


def test_journal_time_never_goes_back() -> None:
    clock = HandClock(100.0)
    time = JournalTime(clock, latest_at=150.0)
    assert time.now() == 150.0
    clock.move(60)
    assert time.now() == 160.0
    clock.move(-120)
    assert time.now() == 160.0


class Script:
    """A long random life of a few keys, played the same to any journal; what it was told is the transcript."""

    def __init__(self, seed: int, journal: Journal, clock: HandClock) -> None:
        self.random = random.Random(seed)
        self.journal = journal
        self.clock = clock
        self.known: dict[str, Operation] = {}  # newest we were told, by key
        self.transcript: list[object] = []
        self.number = 0

    async def play(self, steps: int) -> None:
        moves = [self.claim, self.claim, self.record, self.record, self.take, self.renew, self.expire, self.wait]
        for _ in range(steps):
            await self.random.choice(moves)()
        for listing in (Listing(limit=500), Listing(states=frozenset({State.UNKNOWN}), limit=500)):
            self.transcript.append(await self.journal.listing(listing))
        for operation in await self.journal.listing(Listing(limit=500)):
            self.transcript.append(await self.journal.history(operation.id))
            self.transcript.append(await self.journal.sealed(operation.id))
        self.transcript.append(sorted(map(repr, await self.journal.doubt_counts())))

    async def claim(self) -> None:
        self.number += 1
        request = asking(
            f"key-{self.random.randrange(4)}",
            permitted=self.random.random() < 0.8,
            names_purchase=self.random.random() < 0.5,
            fingerprint=self.random.choice(["f1", "f1", "f1", "f2"]),
            credential=self.random.choice(["c1", "c2"]),
            id=f"op_{self.number:05d}",
        )
        claim = await self.journal.claim(request)
        self.transcript.append(claim)
        if claim.operation is not None:
            self.known[claim.operation.key] = claim.operation

    async def record(self) -> None:
        if not self.known:
            return
        operation = self.known[self.random.choice(sorted(self.known))]
        event = self.random.choice(sorted(Event))
        try:
            after = advance(operation, event, operation.attempts or 1)
        except IllegalTransition:
            return
        change = Change(
            after.changed(
                lease=self.random.choice([None, after.lease, Lease(f"token-{self.number}", 0.0)]),
                released=after.released or (after.state is State.FAILED and self.random.random() < 0.3),
            ),
            (event,),
            lease_s=self.random.choice([None, LEASE_S]),
            sealed_response=self.random.choice([None, b"response"]),
            erase_request=self.random.random() < 0.1,
            accepted_credential=self.random.random() < 0.3,
        )
        await self.told(self.journal.record(change))

    async def take(self) -> None:
        if self.known:
            operation = self.known[self.random.choice(sorted(self.known))]
            await self.told(self.journal.take_lease(operation, f"token-{self.random.randrange(3)}", LEASE_S))

    async def renew(self) -> None:
        token_of = {operation.id: operation.lease.token for operation in self.known.values() if operation.lease}
        self.transcript.append(sorted(await self.journal.renew(tuple(token_of), token_of, LEASE_S)))

    async def expire(self) -> None:
        expired = await self.journal.expire_leases()
        self.transcript.append(sorted(expired, key=lambda operation: operation.id))

    async def wait(self) -> None:
        self.clock.move(self.random.choice([-20.0, 0.5, 7.0, 31.0, 61.0]))

    async def told(self, call: Any) -> None:
        try:
            operation = await call
        except PaywitnessError as error:
            self.transcript.append((type(error), str(error)))
            if isinstance(error, StaleWrite):
                self.transcript.append("read again")
                self.known.pop(self.random.choice(sorted(self.known)))
            return
        self.known[operation.key] = operation
        self.transcript.append(operation)


@pytest.mark.parametrize("seed", range(12))
async def test_sqlite_and_memory_tell_the_same_story(seed: int, tmp_path: Path) -> None:
    told = []
    for kind in ("memory", "sqlite"):
        clock = HandClock()
        journal: Journal = (
            MemoryJournal(clock=clock)
            if kind == "memory"
            else await SqliteJournal.open(tmp_path / "journal.db", clock=clock)
        )
        script = Script(seed, journal, clock)
        await script.play(250)
        await journal.close()
        told.append(script.transcript)
    memory, sqlite = told
    assert len(memory) == len(sqlite)
    for one, other in zip(memory, sqlite, strict=True):
        assert one == other


async def test_the_stories_meet_every_verdict() -> None:
    """A script that only ever owned would prove little."""
    met = set()
    for seed in range(12):
        clock = HandClock()
        script = Script(seed, MemoryJournal(clock=clock), clock)
        await script.play(250)
        met |= {getattr(entry, "verdict", None) for entry in script.transcript}
    assert met >= set(Verdict) - {Verdict.GUARDED, Verdict.EXPIRED}  # not yet given by `judge`


async def test_a_change_of_what_an_operation_is_is_refused_where_tests_can_see_it() -> None:
    """The file writes what an operation is only once, so a change of it would silently not be kept."""
    journal = MemoryJournal(clock=HandClock())
    operation = await owned(journal)
    with pytest.raises(ValueError, match="cannot touch fingerprint"):
        await journal.record(touching(replace(operation, fingerprint="another")))
