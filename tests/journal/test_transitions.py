"""What the stores share: the steps themselves, and that no store departs from them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paywitness.core.claim import AliasKind, Claim, ClaimVerdict
from paywitness.core.consequences import announcement_of
from paywitness.core.errors import IllegalTransition, PaywitnessError, StaleWrite
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import Lease, Operation, RepeatPaymentRule, State
from paywitness.journal.base import Journal, OperationChange, OperationQuery
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.journal.transitions import JournalTime
from tests.journal.memory import MemoryJournal
from tests.journal.samples import FINGERPRINT, LEASE_S, TARGET, HandClock, asking, falling_back, intent, owned, touching


def test_journal_time_never_goes_back() -> None:
    clock = HandClock(100.0)
    time = JournalTime(clock, latest_at=150.0)
    assert time.now() == 150.0
    clock.move(60)
    assert time.now() == 160.0
    clock.move(-120)
    assert time.now() == 160.0


GUARDS = [
    None,
    intent(),
    intent("intent-2", after_success=RepeatPaymentRule.BLOCK, during_action=RepeatPaymentRule.BLOCK),
    TARGET,
    FINGERPRINT,
]


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
        often = [self.claim, self.claim, self.claim, self.record, self.record, self.record, self.wait]
        seldom = [self.take_due, self.renew, self.expire, self.fall_back, self.retire, self.read_on]
        seldom += [self.hasten]
        for _ in range(steps):
            await self.random.choice([*often, *seldom])()
        for listing in (OperationQuery(limit=500), OperationQuery(states=frozenset({State.UNKNOWN}), limit=500)):
            self.transcript.append(await self.journal.find_operations(listing))
        for operation in await self.journal.find_operations(OperationQuery(limit=500)):
            self.transcript.append(await self.journal.history(operation.id))
            self.transcript.append(await self.journal.sealed(operation.id))
        self.transcript.append(sorted(map(repr, await self.journal.doubt_counts())))
        self.transcript.append(await self.journal.announcements(0, limit=10_000))
        for account in ("account-1", "account-eu"):
            self.transcript.append(await self.journal.newest_credentials(account, 9))
        for guard in GUARDS:
            if guard is not None:
                self.transcript.append(await self.journal.find_operations(OperationQuery(guard=guard.value)))

    async def claim(self) -> None:
        self.number += 1
        request = asking(
            f"key-{self.random.randrange(12)}",
            permitted=self.random.random() < 0.8,
            key_names_purchase=self.random.random() < 0.5,
            fingerprint=self.random.choice(["f1", "f1", "f1", "f2"]),
            credential=self.random.choice(["c1", "c2"]),
            id=f"op_{self.number:05d}",
            guard=self.random.choice(GUARDS),
            distinct=self.random.choice(["", "", "", "meant"]),
            provider=self.random.choice(["acme", "acme", "other"]),
        )
        claim = await self.journal.claim(request)
        self.transcript.append(claim)
        if claim.operation is not None:
            self.known[claim.operation.key] = claim.operation

    async def record(self) -> None:
        if not self.known:
            return
        operation = self.known[self.random.choice(sorted(self.known))]
        event = self.random.choice([*sorted(Event), *[Event.SUCCESS_SEEN] * 4])
        try:
            after = advance(operation, event, operation.attempts or 1)
        except IllegalTransition:
            return
        change = OperationChange(
            after.changed(
                lease=self.random.choice([None, after.lease, Lease(f"token-{self.number}", 0.0)]),
                key_released=after.key_released or (after.state is State.FAILED and self.random.random() < 0.3),
                undelivered=after.state is State.SUCCEEDED and self.random.random() < 0.5,
                delivery_unknown=False,  # else hardly any reply could be taken; test_guards.py has it
                due_at=self.random.choice([None, self.clock.now() + self.random.randrange(-5, 20)]),
                incident=after.incident if self.random.random() < 0.3 else None,
            ),
            (event,),
            announcement=announcement_of(operation, after),
            sealed_credential=self.random.choice([None, b"credential"]),
            lease_s=self.random.choice([None, LEASE_S]),
            sealed_response=self.random.choice([None, b"response"]),
            erase_request=self.random.random() < 0.1,
            accepted_credential=self.random.random() < 0.3,
        )
        await self.told(self.journal.record(change))

    async def take_due(self) -> None:
        full = frozenset(self.random.choice([(), ("acme",), ("other", "nobody")]))
        taken = await self.journal.take_due(f"due-{self.number}", LEASE_S, limit=2, full=full)
        self.transcript.append(taken)
        self.known.update({operation.key: operation for operation in taken})

    async def hasten(self) -> None:
        provider, limit = self.random.choice(["acme", "other"]), self.random.choice([1, 3])
        self.transcript.append(await self.journal.expedite(provider, within_s=2.5, limit=limit))

    async def fall_back(self) -> None:
        sending = [key for key, operation in sorted(self.known.items()) if operation.state is State.SENDING]
        if not sending:
            return
        self.number += 1
        operation = self.known[self.random.choice(sending)]
        key = f"fallback-{self.random.randrange(6)}"
        change, request = falling_back(operation, key, id=f"op_{self.number:05d}", fingerprint="f1")
        for _ in range(self.random.choice([1, 1, 2])):
            try:
                first, claim = await self.journal.fall_back(change, request)
            except PaywitnessError as error:
                self.transcript.append((type(error), str(error)))
                return
            self.transcript.append((first, claim))
            self.known[first.key] = first
            if claim.operation is not None:
                self.known[claim.operation.key] = claim.operation

    async def retire(self) -> None:
        limit = self.random.choice([1, 3])
        self.transcript.append(await self.journal.retire(retention_s=300.0, tombstone_s=200.0, limit=limit))

    async def read_on(self) -> None:
        read_to = await self.journal.take_cursor("reader", "one", LEASE_S)
        rows = await self.journal.announcements(read_to or 0, limit=20)
        self.transcript.append(rows)
        if rows:
            await self.journal.move_cursor("reader", rows[-1].seq)

    async def renew(self) -> None:
        token_of = {operation.id: operation.lease.token for operation in self.known.values() if operation.lease}
        self.transcript.append(sorted(await self.journal.renew(tuple(token_of), token_of, LEASE_S)))

    async def expire(self) -> None:
        self.transcript.append(await self.journal.expire_leases())

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
        await script.play(400)
        await journal.close()
        told.append(script.transcript)
    memory, sqlite = told
    assert len(memory) == len(sqlite)
    for one, other in zip(memory, sqlite, strict=True):
        assert one == other


async def test_the_stories_meet_every_verdict() -> None:
    """A script that only ever owned would prove little."""
    met: set[object] = set()
    for seed in (*range(12), 27, 30, 33):  # the later ones: two keys that were given one reply both return
        clock = HandClock()
        script = Script(seed, MemoryJournal(clock=clock), clock)
        await script.play(400)
        claims = [entry for entry in script.transcript if isinstance(entry, Claim)]
        met |= {claim.verdict for claim in claims} | {claim.alias for claim in claims}
        met |= {claim.operation.incident for claim in claims if claim.operation}
        met |= {entry.incident for entry in script.transcript if isinstance(entry, Operation)}
        fallen = [entry[1].verdict for entry in script.transcript if isinstance(entry, tuple) and _is_fallback(entry)]
        met |= {("fallback", verdict) for verdict in fallen}
    of_payments = {ClaimVerdict.REFUNDED, ClaimVerdict.RESERVED, ClaimVerdict.EXCEEDS}  # tests/journal/test_payments.py
    of_payouts = {ClaimVerdict.OVER_CAP, ClaimVerdict.NEEDS_APPROVAL, ClaimVerdict.CHECK_REFUSED}  # test_payouts.py
    of_credentials = {ClaimVerdict.ACCOUNT_UNKNOWN, ClaimVerdict.ANOTHER_OWNER}  # test_claim_credentials.py
    elsewhere = of_payments | of_payouts | of_credentials
    elsewhere |= {ClaimVerdict.PAID_BEFORE}  # one story in sixty; test_payments.py
    assert met >= {*ClaimVerdict, *AliasKind, "duplicate_success", "both_keys_returned"} - elsewhere
    assert met >= {("fallback", ClaimVerdict.OWNED), ("fallback", ClaimVerdict.REPLAY)}


def _is_fallback(entry: tuple[Any, ...]) -> bool:
    return len(entry) == 2 and isinstance(entry[1], Claim)


async def test_a_change_of_what_an_operation_is_is_refused_where_tests_can_see_it() -> None:
    """The file writes what an operation is only once, so a change of it would silently not be kept."""
    journal = MemoryJournal(clock=HandClock())
    operation = await owned(journal)
    with pytest.raises(ValueError, match="cannot touch fingerprint"):
        await journal.record(touching(replace(operation, fingerprint="another")))
