"""Leases: the right to send. They expire into doubt or into "never sent", and only a doubt can be taken again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from paywitness.core.errors import StaleWrite
from paywitness.core.lifecycle import Event
from paywitness.core.operation import Announcement, AnnouncementKind, Lease, Outcome, State
from paywitness.journal.base import Journal
from paywitness.journal.transitions import EXPIRED_LEASES_MAX
from tests.journal.conftest import Store
from tests.journal.samples import (
    LEASE_S,
    HandClock,
    asking,
    doubting,
    holding,
    owned,
    read,
    resending,
    succeeding,
    waiting,
)


class TestExpiry:
    async def test_a_lease_that_runs_is_left_alone(self, journal: Journal, clock: HandClock) -> None:
        operation = await owned(journal)
        clock.move(LEASE_S - 0.001)
        assert await journal.expire_leases() == ()
        assert await read(journal, operation) == operation

    async def test_an_expired_lease_on_sending_is_doubt_and_due_at_once(
        self, journal: Journal, clock: HandClock
    ) -> None:
        operation = await owned(journal)
        clock.move(LEASE_S)
        (expired,) = await journal.expire_leases()
        assert expired == replace(
            operation,
            state=State.UNKNOWN,
            doubt=frozenset({1}),
            attempt_under_way=False,
            delivery_unknown=True,
            lease=None,
            version=2,
            updated_at=clock.now(),
            due_at=clock.now(),
            no_bytes_after_at=clock.now(),
        )
        assert await read(journal, operation) == expired
        assert await journal.sealed(operation.id) == (b"sealed request", None)
        entry = (await journal.history(operation.id))[-1]
        assert (entry.source, entry.note, entry.events) == ("recovery", "lease expired", (Event.LEASE_EXPIRED,))
        assert (entry.state, entry.doubt) == (State.UNKNOWN, frozenset({1}))
        assert entry.announcement == Announcement((AnnouncementKind.DOUBT_OPENED,), Outcome.UNKNOWN, None, None, None)

    async def test_an_expired_lease_between_tries_ends_as_never_sent(self, journal: Journal, clock: HandClock) -> None:
        operation = await journal.record(waiting(await owned(journal)))
        clock.move(LEASE_S)
        (expired,) = await journal.expire_leases()
        assert (expired.state, expired.key_released, expired.due_at) == (State.FAILED, True, None)
        assert expired.ended_at == clock.now()
        assert await journal.sealed(operation.id) == (None, None)

    async def test_a_resend_under_doubt_stays_doubt(self, journal: Journal, clock: HandClock) -> None:
        doubted = await journal.record(doubting(await owned(journal)))
        resent = await journal.record(resending(doubted, "resolver"))
        assert (resent.attempts, resent.attempt_under_way) == (2, True)
        clock.move(LEASE_S)
        (expired,) = await journal.expire_leases()
        assert (expired.state, expired.doubt, expired.attempt_under_way) == (State.UNKNOWN, frozenset({1, 2}), False)

    async def test_acting_twice_does_nothing_the_second_time(self, journal: Journal, clock: HandClock) -> None:
        await owned(journal)
        clock.move(LEASE_S)
        assert len(await journal.expire_leases()) == 1
        assert await journal.expire_leases() == ()

    async def test_a_holder_that_comes_too_late_is_stale(self, journal: Journal, clock: HandClock) -> None:
        operation = await owned(journal)
        clock.move(LEASE_S)
        await journal.expire_leases()
        with pytest.raises(StaleWrite):
            await journal.record(succeeding(operation))

    async def test_evidence_after_expiry_is_taken_over_the_new_version(
        self, journal: Journal, clock: HandClock
    ) -> None:
        await owned(journal)
        clock.move(LEASE_S)
        (expired,) = await journal.expire_leases()
        assert (await journal.record(succeeding(expired))).state is State.SUCCEEDED

    async def test_at_most_a_thousand_at_a_time(self, journal: Journal, clock: HandClock) -> None:
        numbers = range(EXPIRED_LEASES_MAX + 3)
        for first in numbers[::100]:  # not all at once: on a busy machine the last would have waited too long
            await asyncio.gather(*(journal.claim(asking(f"key-{n}")) for n in numbers[first : first + 100]))
        clock.move(LEASE_S)
        assert len(await journal.expire_leases()) == EXPIRED_LEASES_MAX
        assert len(await journal.expire_leases()) == 3


class TestEarlierHolders:
    async def test_after_a_restart_all_leases_of_earlier_holders_are_over_at_once(self, store: Store) -> None:
        operation = await owned(store.journal)
        journal = await store.reopen()
        assert await journal.expire_leases() == ()
        if store.shared:  # that our own earlier process is gone says nothing of others: the lease runs on
            assert await journal.expire_leases(all_of_earlier_holders=True) == ()
            store.clock.move(LEASE_S)
        (expired,) = await journal.expire_leases(all_of_earlier_holders=True)
        assert (expired.id, expired.state) == (operation.id, State.UNKNOWN)

    async def test_those_of_this_process_are_not(self, store: Store) -> None:
        earlier = await owned(store.journal, "key-1")
        journal = await store.reopen()
        if store.shared:
            store.clock.move(LEASE_S)
        present = await owned(journal, "key-2")
        (expired,) = await journal.expire_leases(all_of_earlier_holders=True)
        assert expired.id == earlier.id
        assert await read(journal, present) == present

    async def test_nor_one_that_this_process_has_taken(self, store: Store) -> None:
        doubted = await store.journal.record(doubting(await owned(store.journal)))
        journal = await store.reopen()
        held = await journal.record(holding(doubted, "resolver"))
        assert await journal.expire_leases(all_of_earlier_holders=True) == ()
        assert await read(journal, held) == held


class TestRenewal:
    async def test_a_renewed_lease_outlives_its_first_end(self, journal: Journal, clock: HandClock) -> None:
        operation = await owned(journal, token="mine")
        clock.move(20)
        assert await journal.renew((operation.id,), {operation.id: "mine"}, LEASE_S) == {operation.id}
        clock.move(20)
        assert await journal.expire_leases() == ()
        renewed = await read(journal, operation)
        assert renewed.lease == Lease("mine", operation.created_at + 20 + LEASE_S)

    async def test_a_renewal_makes_no_new_version(self, journal: Journal) -> None:
        """The holder's next record must not be stale because of its own renewal."""
        operation = await owned(journal, token="mine")
        await journal.renew((operation.id,), {operation.id: "mine"}, LEASE_S)
        assert (await journal.record(succeeding(operation))).version == 2
        assert len(await journal.history(operation.id)) == 2

    async def test_only_what_is_still_held_under_its_token_is_renewed(self, journal: Journal, clock: HandClock) -> None:
        over = await owned(journal, "over", token="mine")
        clock.move(LEASE_S)
        ended = await journal.record(succeeding(await owned(journal, "ended", token="mine")))
        others = await owned(journal, "others", token="theirs")
        mine = await owned(journal, "mine", token="mine")
        forgotten = await owned(journal, "forgotten", token="mine")
        ids = (over.id, ended.id, others.id, mine.id, forgotten.id, "op_unknown")
        token_of = dict.fromkeys((over.id, ended.id, others.id, mine.id, "op_unknown"), "mine")
        assert await journal.renew(ids, token_of, LEASE_S) == {mine.id}

    async def test_a_renewal_never_shortens(self, journal: Journal) -> None:
        operation = await owned(journal, token="mine")
        await journal.renew((operation.id,), {operation.id: "mine"}, 1.0)
        assert (await read(journal, operation)).lease == operation.lease
