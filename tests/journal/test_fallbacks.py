"""Fallbacks: one operation ends without effect and another starts for it, both or neither."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from paywitness.core.claim import AliasKind, ClaimVerdict
from paywitness.core.errors import IllegalTransition, StaleWrite
from paywitness.core.fallback import FallbackCause, FallbackChoice, RouteCandidate, RouteVerdict
from paywitness.core.lifecycle import Event
from paywitness.core.operation import Lease, Operation, State
from paywitness.journal.base import Journal
from tests.journal.conftest import Store
from tests.journal.samples import (
    LEASE_S,
    TARGET,
    HandClock,
    asking,
    declining,
    doubting,
    falling_back,
    intent,
    owned,
    read,
    succeeding,
    touching,
    unheard,
)


async def fallen(journal: Journal, key: str = "key-1") -> tuple[Operation, Operation]:
    """An operation and its fallback."""
    change, request = falling_back(await owned(journal, key, guard=intent()))
    first, claim = await journal.fall_back(change, request)
    assert claim.operation is not None
    return first, claim.operation


class TestOneStep:
    async def test_the_first_ends_and_the_second_is_being_sent(self, journal: Journal, clock: HandClock) -> None:
        operation = await owned(journal, guard=intent())
        clock.move(3)
        change, request = falling_back(operation)
        first, claim = await journal.fall_back(change, request)
        assert first == replace(
            change.operation, version=2, updated_at=clock.now(), ended_at=clock.now(), fallback_to=request.fresh.id
        )
        assert claim.verdict is ClaimVerdict.OWNED
        now = clock.now()
        assert claim.operation == replace(
            request.fresh,
            state=State.SENDING,
            version=1,
            attempts=1,
            attempt_under_way=True,
            created_at=now,
            updated_at=now,
            first_sent_at=now,
            lease=Lease(request.token, now + LEASE_S),
        )
        assert claim.operation.fallback_of == first.id
        assert (await read(journal, first), await read(journal, claim.operation)) == (first, claim.operation)
        assert await journal.sealed(first.id) == (None, b"sealed decline")
        assert await journal.sealed(claim.operation.id) == (b"sealed request", None)
        (entry,) = await journal.history(claim.operation.id)
        assert (entry.events, entry.note) == ((Event.SEND_RECORDED,), f"stands for {first.id}")

    async def test_what_inquiries_showed_absent_ends_and_the_second_is_being_sent(self, store: Store) -> None:
        """Out of a doubt, and with everything that was considered."""
        doubted = await store.journal.record(doubting(await owned(store.journal, guard=intent())))
        marked = await store.journal.record(touching(replace(doubted, absence_shown=True, misses=3)))
        change, request = falling_back(marked, fallback_from="acme", fallback_reason="absent")
        choice = FallbackChoice(
            FallbackCause.ABSENT,
            (
                RouteCandidate("acme_us", RouteVerdict.CIRCUIT_OPEN, "circuit_open"),
                RouteCandidate("acme_eu", RouteVerdict.TAKEN),
            ),
            "revision",
            1,
        )
        change = replace(change, events=(Event.INQUIRY_CONFIRMED_ABSENT,), fallback=choice)
        change = replace(change, operation=replace(change.operation, doubt=frozenset(), absence_shown=False))
        first, claim = await store.journal.fall_back(change, request)
        journal = await store.reopen()
        second = await read(journal, request.fresh)
        assert (first.state, first.doubt, first.fallback_to) == (State.FAILED, frozenset(), second.id)
        assert (second.state, second.fallback_from, second.fallback_reason) == (State.SENDING, "acme", "absent")
        assert (await journal.history(first.id))[-1].fallback == choice
        assert claim.verdict is ClaimVerdict.OWNED
        late = doubting(await read(journal, first))
        with pytest.raises(StaleWrite):  # somebody who still takes it for a doubt
            await journal.record(replace(late, operation=replace(late.operation, version=marked.version)))

    async def test_where_somebody_was_faster_nothing_is_written(self, journal: Journal) -> None:
        operation = await owned(journal, guard=intent())
        change, request = falling_back(operation)
        doubted = await journal.record(doubting(operation))
        with pytest.raises(StaleWrite):
            await journal.fall_back(change, request)
        assert await journal.read(request.fresh.id) is None
        assert await read(journal, operation) == doubted

    async def test_of_many_exactly_one_is_written(self, journal: Journal) -> None:
        operation = await owned(journal, guard=intent())
        asked = [falling_back(operation, f"fallback-{number}") for number in range(20)]
        results = await asyncio.gather(
            *(journal.fall_back(change, request) for change, request in asked), return_exceptions=True
        )
        assert sum(isinstance(result, StaleWrite) for result in results) == 19
        standing = [await journal.read(request.fresh.id) for _, request in asked]
        assert sum(second is not None for second in standing) == 1

    async def test_asked_again_with_its_token_it_gives_the_same_answer(self, journal: Journal) -> None:
        change, request = falling_back(await owned(journal, guard=intent()))
        answer = await journal.fall_back(change, request)
        assert await journal.fall_back(change, request) == answer
        first, claim = answer
        assert claim.operation is not None
        assert (len(await journal.history(first.id)), len(await journal.history(claim.operation.id))) == (2, 1)

    async def test_with_another_token_it_is_stale(self, journal: Journal) -> None:
        change, request = falling_back(await owned(journal, guard=intent()))
        await journal.fall_back(change, request)
        with pytest.raises(StaleWrite):
            await journal.fall_back(change, replace(request, token="another"))

    async def test_only_an_end_without_effect_falls_back(self, journal: Journal) -> None:
        operation = await owned(journal, guard=intent())
        change, request = falling_back(operation)
        doubted = replace(doubting(operation).operation, fallback_to=request.fresh.id)
        with pytest.raises(IllegalTransition, match="only an end without effect"):
            await journal.fall_back(replace(change, operation=doubted), request)
        assert await read(journal, operation) == operation

    async def test_both_must_name_each_other(self, journal: Journal) -> None:
        change, request = falling_back(await owned(journal, guard=intent()))
        with pytest.raises(ValueError, match="must name each other"):
            await journal.fall_back(change, replace(request, fresh=replace(request.fresh, fallback_of="op_other")))


class TestKnownKey:
    """Where the second's key is known already, nothing is started over it and the first is not ended."""

    async def asked(self, journal: Journal, expected: ClaimVerdict) -> Operation | None:
        operation = await owned(journal, "first", guard=intent())
        change, request = falling_back(operation)
        first, claim = await journal.fall_back(change, request)
        assert first == operation == await read(journal, operation)
        assert claim.verdict is expected
        assert await journal.read(request.fresh.id) is None
        return claim.operation

    async def test_its_own_operation(self, journal: Journal) -> None:
        known = await owned(journal, "fallback")
        assert await self.asked(journal, ClaimVerdict.IN_FLIGHT) == known

    async def test_one_that_ended(self, journal: Journal) -> None:
        known = await journal.record(succeeding(await owned(journal, "fallback")))
        assert await self.asked(journal, ClaimVerdict.REPLAY) == known

    async def test_even_one_that_was_released(self, journal: Journal) -> None:
        known = await journal.record(declining(await owned(journal, "fallback"), released=True))
        assert await self.asked(journal, ClaimVerdict.REPLAY) == known

    async def test_one_of_another_payload(self, journal: Journal) -> None:
        known = await owned(journal, "fallback", fingerprint="another")
        assert await self.asked(journal, ClaimVerdict.MISMATCH) == known

    async def test_one_that_was_refused_or_joined(self, journal: Journal) -> None:
        holder = await owned(journal, "holder", guard=TARGET)
        await journal.claim(asking("fallback", guard=TARGET))
        assert await self.asked(journal, ClaimVerdict.GUARDED) == holder

    async def test_a_tombstone(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(succeeding(await owned(journal, "fallback")))
        clock.move(1000)
        assert await journal.retire(retention_s=10, tombstone_s=1e6, limit=10) == 1
        assert await self.asked(journal, ClaimVerdict.EXPIRED) is None


class TestAfterwards:
    async def test_the_second_holds_the_intent(self, journal: Journal) -> None:
        _, second = await fallen(journal)
        claim = await journal.claim(asking("key-9", guard=intent(), fingerprint="another"))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.GUARDED, second)

    async def test_the_first_key_answers_with_the_seconds_outcome_for_ever(self, store: Store) -> None:
        _, second = await fallen(store.journal)
        assert (await store.journal.claim(asking(guard=intent()))).verdict is ClaimVerdict.IN_FLIGHT
        paid = await store.journal.record(succeeding(second))
        journal = await store.reopen()
        store.clock.move(1e6)
        for permitted in (True, False):
            claim = await journal.claim(asking(guard=intent(), permitted=permitted))
            assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.REPLAY, paid, None)
            assert (claim.sealed_response, claim.credential_accepted) == (b"sealed response", True)

    async def test_it_never_starts_again_even_after_a_released_end_of_the_second(
        self, journal: Journal, clock: HandClock
    ) -> None:
        _, second = await fallen(journal)
        failed = await journal.record(declining(second, released=True))
        clock.move(1e6)
        claim = await journal.claim(asking(guard=intent()))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.REPLAY, failed)

    async def test_the_first_is_asked_whether_it_is_the_same_call(self, journal: Journal) -> None:
        first, second = await fallen(journal)
        claim = await journal.claim(asking(guard=intent(), fingerprint="another"))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.MISMATCH, first)
        stranger = asking(guard=intent(), credential="stranger")
        await journal.record(succeeding(second))
        assert not (await journal.claim(stranger)).credential_accepted

    async def test_the_seconds_expired_lease_is_acted_upon(self, journal: Journal, clock: HandClock) -> None:
        _, second = await fallen(journal)
        clock.move(LEASE_S)
        claim = await journal.claim(asking(guard=intent()))
        assert claim.verdict is ClaimVerdict.IN_DOUBT
        assert claim.operation == await read(journal, second)
        assert claim.operation.state is State.UNKNOWN

    async def test_an_equal_call_with_a_fresh_key_joins_what_stands_for_the_first(self, journal: Journal) -> None:
        """It is equal to the call that came, not to what became of it at the other route."""
        change, request = falling_back(await owned(journal, guard=intent()), fingerprint="at the other route")
        _, claim = await journal.fall_back(change, request)
        joined = await journal.claim(asking("key-9", guard=intent()))
        assert (joined.verdict, joined.operation, joined.alias) == (
            ClaimVerdict.IN_FLIGHT,
            claim.operation,
            AliasKind.JOINED,
        )
        assert claim.operation is not None
        paid = await journal.record(succeeding(claim.operation))
        again = await journal.claim(asking("key-9", guard=intent()))
        assert (again.verdict, again.operation, again.alias) == (ClaimVerdict.REPLAY, paid, AliasKind.JOINED)

    async def test_an_unheard_end_of_the_second_is_taken(self, journal: Journal) -> None:
        _, second = await fallen(journal)
        await journal.record(unheard(succeeding(second)))
        claim = await journal.claim(asking("key-9", guard=intent()))
        assert (claim.verdict, claim.alias) == (ClaimVerdict.REPLAY, AliasKind.TAKEN)
        for key in ("key-1", "key-9"):
            claim = await journal.claim(asking(key, guard=intent()))
        assert claim.operation == await read(journal, second)
        assert claim.operation.incident == "both_keys_returned"

    async def test_a_fallback_of_a_fallback_is_followed(self, journal: Journal) -> None:
        _, second = await fallen(journal)
        change, request = falling_back(second, "fallback-2", provider="acme_us")
        _, claim = await journal.fall_back(change, request)
        found = await journal.claim(asking(guard=intent()))
        assert (found.verdict, found.operation) == (ClaimVerdict.IN_FLIGHT, claim.operation)

    async def test_later_changes_keep_the_link(self, journal: Journal) -> None:
        first, second = await fallen(journal)
        assert (await journal.record(touching(first))).fallback_to == second.id
        assert (await journal.record(succeeding(second))).fallback_of == first.id
