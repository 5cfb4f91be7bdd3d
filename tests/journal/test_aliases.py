"""Keys that stand for another key's operation: joined, taken, refused; and what becomes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paywitness.core.claim import AliasKind, ClaimVerdict
from paywitness.core.operation import AnnouncementKind, Operation, RepeatPaymentRule, State
from paywitness.journal.base import Journal, OperationQuery
from tests.journal.conftest import Store
from tests.journal.samples import (
    FINGERPRINT,
    LEASE_S,
    TARGET,
    HandClock,
    asking,
    declining,
    doubting,
    intent,
    owned,
    read,
    succeeding,
    touching,
    unheard,
    waiting,
)


class TestJoined:
    @pytest.fixture
    async def first(self, journal: Journal) -> Operation:
        """Held by key-1 and joined by key-2."""
        first = await owned(journal, guard=intent())
        assert (await journal.claim(asking("key-2", guard=intent()))).alias is AliasKind.JOINED
        return first

    async def test_its_repeats_get_what_the_firsts_get(self, store: Store, first: Operation) -> None:
        journal = store.journal
        claim = await journal.claim(asking("key-2", guard=intent()))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_FLIGHT, first, AliasKind.JOINED)
        ended = await journal.record(succeeding(first))
        journal = await store.reopen()
        for key, alias in (("key-1", None), ("key-2", AliasKind.JOINED)):
            claim = await journal.claim(asking(key, guard=intent()))
            assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.REPLAY, ended, alias)
            assert claim.sealed_response == b"sealed response"
        assert (await read(journal, first)).incident is None  # it is one purchase, and both know it

    async def test_a_look_up_that_may_not_start_is_told_too(self, journal: Journal, first: Operation) -> None:
        claim = await journal.claim(asking("key-2", guard=intent(), permitted=False))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.IN_FLIGHT, first)

    async def test_it_stands_for_the_first_without_the_guard_too(self, journal: Journal, first: Operation) -> None:
        """A paid intent that only flags would let another key start: not this one, which was told the first's."""
        await journal.record(succeeding(first))
        assert (await journal.claim(asking("key-2", guard=intent()))).verdict is ClaimVerdict.REPLAY
        assert (await journal.claim(asking("key-3", guard=intent()))).verdict is ClaimVerdict.OWNED

    async def test_with_another_payload_it_is_a_mismatch(self, journal: Journal, first: Operation) -> None:
        claim = await journal.claim(asking("key-2", guard=intent(), fingerprint="another"))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.MISMATCH, first)

    async def test_a_repeat_is_compared_under_the_stored_rule(self, journal: Journal, first: Operation) -> None:
        request = asking("key-2", guard=intent(), fingerprint="under another rule")
        claim = await journal.claim(replace(request, compare_fingerprint="fingerprint-1"))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.IN_FLIGHT, first)

    async def test_the_firsts_expired_lease_is_acted_upon(
        self, journal: Journal, clock: HandClock, first: Operation
    ) -> None:
        clock.move(LEASE_S)
        claim = await journal.claim(asking("key-2", guard=intent()))
        assert claim.verdict is ClaimVerdict.IN_DOUBT
        assert claim.operation == await read(journal, first)
        assert claim.operation.state is State.UNKNOWN

    async def test_a_released_end_of_the_first_lets_it_start_its_own(self, journal: Journal, first: Operation) -> None:
        await journal.record(declining(first, released=True))
        second = await owned(journal, "key-2", guard=intent())
        assert (second.key, second.generation, second.provider_key) == ("key-2", 1, "provider-key-2")
        # And from then on it is its own: the first key now meets it as the holder of the guard.
        claim = await journal.claim(asking("key-1", guard=intent()))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_FLIGHT, second, AliasKind.JOINED)
        await journal.record(declining(second, released=True))
        assert (await owned(journal, "key-2", guard=intent())).generation == 2

    async def test_a_first_that_waited_between_tries_and_is_gone_lets_it_start(
        self, journal: Journal, clock: HandClock, first: Operation
    ) -> None:
        await journal.record(waiting(first))
        clock.move(LEASE_S)
        await owned(journal, "key-2", guard=intent())
        assert (await read(journal, first)).state is State.FAILED

    async def test_a_spent_end_of_the_first_is_replayed_to_it(self, journal: Journal, first: Operation) -> None:
        await journal.record(declining(first))
        claim = await journal.claim(asking("key-2", guard=intent()))
        assert (claim.verdict, claim.sealed_response) == (ClaimVerdict.REPLAY, b"sealed decline")

    async def test_its_credential_is_asked_of_the_firsts_account(self, journal: Journal, first: Operation) -> None:
        """The key may be another account's of the same merchant."""
        await journal.record(succeeding(first))
        stranger = await owned(journal, "key-9", account="account-2", credential="credential-2")
        await journal.record(succeeding(stranger, accepted_credential=True))
        request = asking("key-2", guard=intent(), account="account-2", credential="credential-2")
        assert not (await journal.claim(request)).credential_accepted
        assert (await journal.claim(asking("key-2", guard=intent()))).credential_accepted

    async def test_it_is_found_by_its_own_name(self, journal: Journal, first: Operation) -> None:
        assert await journal.find_operations(OperationQuery(key="client-key-2")) == (first,)


class TestRefused:
    async def test_a_refused_key_is_free_when_the_guard_is(self, journal: Journal) -> None:
        first = await owned(journal, guard=TARGET)
        for _ in range(2):
            claim = await journal.claim(asking("key-2", guard=TARGET))
            assert (claim.verdict, claim.alias) == (ClaimVerdict.GUARDED, AliasKind.REFUSED)
        await journal.record(succeeding(first))
        second = await owned(journal, "key-2", guard=TARGET)
        claim = await journal.claim(asking("key-2", guard=TARGET))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_FLIGHT, second, None)

    async def test_a_refused_key_may_join_later(self, journal: Journal) -> None:
        """Refused for its body; it comes back with an equal one."""
        first = await owned(journal, guard=intent())
        refused = asking("key-2", guard=intent(), fingerprint="another")
        assert (await journal.claim(refused)).alias is AliasKind.REFUSED
        assert (await journal.claim(asking("key-2", guard=intent()))).alias is AliasKind.JOINED
        await journal.record(succeeding(first))
        assert (await journal.claim(asking("key-2", guard=intent()))).verdict is ClaimVerdict.REPLAY


class TestTaken:
    @pytest.fixture
    async def taken(self, journal: Journal) -> Operation:
        """Ended unheard under key-1, its answer taken by key-2."""
        await journal.record(unheard(succeeding(await owned(journal, guard=FINGERPRINT))))
        claim = await journal.claim(asking("key-2", guard=FINGERPRINT))
        assert (claim.verdict, claim.alias) == (ClaimVerdict.REPLAY, AliasKind.TAKEN)
        assert claim.operation is not None
        return claim.operation

    @pytest.mark.parametrize(("key", "who"), [("key-1", "first_returned"), ("key-2", "taker_returned")])
    async def test_one_of_both_returning_is_noted_once(
        self, journal: Journal, taken: Operation, key: str, who: str
    ) -> None:
        for _ in range(3):
            claim = await journal.claim(asking(key, guard=FINGERPRINT))
            assert (claim.verdict, claim.sealed_response) == (ClaimVerdict.REPLAY, b"sealed response")
        assert claim.operation == await read(journal, taken)
        assert (claim.operation.takeover, claim.operation.incident) == (who, None)
        assert claim.operation.version == taken.version + 1
        assert (await journal.history(taken.id))[-1].events == ("key_returned",)

    @pytest.mark.parametrize("order", [("key-1", "key-2"), ("key-2", "key-1")])
    async def test_both_returning_is_an_incident(
        self, journal: Journal, taken: Operation, order: tuple[str, str]
    ) -> None:
        for key in order:
            claim = await journal.claim(asking(key, guard=FINGERPRINT))
        assert claim.operation == await read(journal, taken)
        assert (claim.operation.incident, claim.operation.takeover) == ("both_keys_returned", "both")
        entry = (await journal.history(taken.id))[-1]
        assert entry.announcement is not None
        assert entry.announcement.kinds == (AnnouncementKind.INCIDENT_OPENED,)
        again = await journal.claim(asking(order[0], guard=FINGERPRINT))
        assert again.operation == claim.operation

    async def test_the_incident_is_not_opened_again_once_a_person_closed_it(
        self, journal: Journal, taken: Operation
    ) -> None:
        for key in ("key-1", "key-2"):
            await journal.claim(asking(key, guard=FINGERPRINT))
        await journal.record(touching(replace(await read(journal, taken), incident=None)))
        for key in ("key-1", "key-2"):
            claim = await journal.claim(asking(key, guard=FINGERPRINT))
            assert claim.operation is not None
            assert claim.operation.incident is None

    async def test_another_body_under_the_takers_key_is_a_mismatch(self, journal: Journal, taken: Operation) -> None:
        claim = await journal.claim(asking("key-2", guard=FINGERPRINT, fingerprint="another"))
        assert (claim.verdict, claim.operation) == (ClaimVerdict.MISMATCH, taken)


async def test_an_intent_that_blocks_is_joined_after_the_payment_and_ever_after(journal: Journal) -> None:
    guard = intent(after_success=RepeatPaymentRule.BLOCK)
    first = await journal.record(succeeding(await owned(journal, guard=guard)))
    for _ in range(2):
        claim = await journal.claim(asking("key-2", guard=guard))
        assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.REPLAY, first, AliasKind.JOINED)


async def test_a_key_with_a_doubt_of_its_own_never_asks_another(journal: Journal) -> None:
    """Its own operation comes first, whatever it joined before."""
    first = await owned(journal, guard=intent())
    await journal.claim(asking("key-2", guard=intent()))
    await journal.record(declining(first, released=True))
    second = await journal.record(doubting(await owned(journal, "key-2", guard=intent())))
    claim = await journal.claim(asking("key-2", guard=intent()))
    assert (claim.verdict, claim.operation, claim.alias) == (ClaimVerdict.IN_DOUBT, second, None)
