"""Claims: one caller owns an operation, everybody else is told how it stands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.claim import ClaimVerdict, generation_key
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import Lease, State
from paywitness.journal.base import Journal, OperationChange
from tests.journal.conftest import Store
from tests.journal.samples import (
    LEASE_S,
    STEM,
    HandClock,
    asking,
    declining,
    doubting,
    holding,
    owned,
    prepared,
    read,
    succeeding,
    touching,
    waiting,
)


async def test_an_owned_claim_stands_as_sending_with_its_first_attempt_under_way(
    journal: Journal, clock: HandClock
) -> None:
    request = asking()
    claim = await journal.claim(request)
    assert claim.verdict is ClaimVerdict.OWNED
    assert claim.now == clock.now()
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
    assert await read(journal, request.fresh) == claim.operation
    assert await journal.sealed(request.fresh.id) == (b"sealed request", None)


async def test_of_a_hundred_identical_claims_at_once_exactly_one_is_owned(journal: Journal) -> None:
    claims = await asyncio.gather(*(journal.claim(asking()) for _ in range(100)))
    verdicts = [claim.verdict for claim in claims]
    assert verdicts.count(ClaimVerdict.OWNED) == 1
    assert verdicts.count(ClaimVerdict.IN_FLIGHT) == 99
    assert len({claim.operation.id for claim in claims if claim.operation}) == 1


async def test_a_claim_asked_again_with_its_token_gives_the_same_answer(journal: Journal) -> None:
    request = asking()
    first = await journal.claim(request)
    assert await journal.claim(request) == first
    assert len(await journal.history(request.fresh.id)) == 1


async def test_two_claims_with_one_token_at_once_start_one_operation(journal: Journal) -> None:
    request = asking()
    first, second = await asyncio.gather(journal.claim(request), journal.claim(request))
    assert first == second


async def test_a_claim_that_is_not_permitted_records_nothing(journal: Journal) -> None:
    request = asking(permitted=False)
    claim = await journal.claim(request)
    assert (claim.verdict, claim.operation) == (ClaimVerdict.ABSENT, None)
    assert await journal.read(request.fresh.id) is None
    assert (await journal.claim(asking())).verdict is ClaimVerdict.OWNED


async def test_a_claim_that_is_not_permitted_is_told_what_is_known(journal: Journal) -> None:
    operation = await owned(journal)
    assert (await journal.claim(asking(permitted=False))).verdict is ClaimVerdict.IN_FLIGHT
    await journal.record(succeeding(operation))
    assert (await journal.claim(asking(permitted=False))).verdict is ClaimVerdict.REPLAY


async def test_the_same_key_with_another_payload_is_a_mismatch(journal: Journal) -> None:
    operation = await owned(journal)
    claim = await journal.claim(asking(fingerprint="another"))
    assert (claim.verdict, claim.operation) == (ClaimVerdict.MISMATCH, operation)


async def test_a_repeat_is_compared_under_the_stored_rule(journal: Journal) -> None:
    await owned(journal)
    request = replace(asking(fingerprint="under another rule"), compare_fingerprint="fingerprint-1")
    assert (await journal.claim(request)).verdict is ClaimVerdict.IN_FLIGHT


async def test_a_success_is_replayed_with_its_sealed_response(journal: Journal) -> None:
    ended = await journal.record(succeeding(await owned(journal)))
    claim = await journal.claim(asking())
    assert (claim.verdict, claim.operation) == (ClaimVerdict.REPLAY, ended)
    assert (claim.sealed_request, claim.sealed_response) == (None, b"sealed response")


async def test_an_end_without_a_response_of_its_own_is_replayed_without_one(journal: Journal) -> None:
    await journal.record(succeeding(await owned(journal), sealed_response=None))
    claim = await journal.claim(asking())
    assert (claim.verdict, claim.sealed_response) == (ClaimVerdict.REPLAY, None)


async def test_a_doubt_that_nobody_holds_is_answered_with_the_sealed_request(journal: Journal) -> None:
    doubted = await journal.record(doubting(await owned(journal)))
    claim = await journal.claim(asking())
    assert (claim.verdict, claim.operation) == (ClaimVerdict.IN_DOUBT, doubted)
    assert (claim.sealed_request, claim.sealed_response) == (b"sealed request", None)


async def test_a_doubt_that_somebody_holds_is_in_flight(journal: Journal) -> None:
    doubted = await journal.record(doubting(await owned(journal)))
    await journal.record(holding(doubted, "resolver"))
    assert (await journal.claim(asking())).verdict is ClaimVerdict.IN_FLIGHT


async def test_keys_do_not_see_each_other(journal: Journal) -> None:
    await owned(journal, "key-1")
    assert (await journal.claim(asking("key-2"))).verdict is ClaimVerdict.OWNED


class TestCredentials:
    """A replay goes to a credential that made the call or that the provider has since accepted for that account."""

    async def test_the_credential_that_made_the_call_is_accepted(self, journal: Journal) -> None:
        await journal.record(succeeding(await owned(journal)))
        assert (await journal.claim(asking())).credential_accepted

    async def test_another_credential_is_not(self, journal: Journal) -> None:
        await journal.record(succeeding(await owned(journal), accepted_credential=True))
        assert not (await journal.claim(asking(credential="credential-2"))).credential_accepted

    async def test_until_the_provider_has_accepted_it(self, store: Store) -> None:
        journal = store.journal
        await journal.record(succeeding(await owned(journal)))
        other = await owned(journal, "key-2", credential="credential-2")
        await journal.record(succeeding(other, accepted_credential=True))
        assert (await journal.claim(asking(credential="credential-2"))).credential_accepted
        journal = await store.reopen()
        assert (await journal.claim(asking(credential="credential-2"))).credential_accepted

    async def test_a_repeat_of_what_is_in_doubt_is_asked_too(self, journal: Journal) -> None:
        """It would have the stored request sent again, and be told what came of it."""
        await journal.record(doubting(await owned(journal)))
        assert (await journal.claim(asking())).credential_accepted
        assert not (await journal.claim(asking(credential="credential-2"))).credential_accepted

    async def test_what_one_account_accepted_is_nothing_to_another(self, journal: Journal) -> None:
        await journal.record(succeeding(await owned(journal, account="account-1")))
        other = await owned(journal, "key-2", account="account-2", credential="credential-2")
        await journal.record(succeeding(other, accepted_credential=True))
        claim = await journal.claim(asking(account="account-1", credential="credential-2"))
        assert not claim.credential_accepted

    async def test_accepting_it_a_thousand_times_changes_nothing(self, journal: Journal) -> None:
        for number in range(3):
            await journal.record(succeeding(await owned(journal, f"key-{number}"), accepted_credential=True))
        assert (await journal.claim(asking("key-0"))).credential_accepted


class TestNewestCredential:
    """What background calls of an account are made with."""

    async def accepted(self, journal: Journal, key: str, credential: str, sealed: bytes | None) -> None:
        change = succeeding(await owned(journal, key, credential=credential))
        await journal.record(replace(change, accepted_credential=True, sealed_credential=sealed))

    async def test_the_one_that_was_accepted_last(self, store: Store) -> None:
        journal, clock = store.journal, store.clock
        assert await journal.newest_credentials("account-1", 1) == ()
        await self.accepted(journal, "key-1", "credential-9", b"nine")
        assert await journal.newest_credentials("account-1", 1) == (("credential-9", b"nine"),)
        clock.move(1)
        await self.accepted(journal, "key-2", "credential-1", b"one")
        assert await journal.newest_credentials("account-1", 1) == (("credential-1", b"one"),)
        assert await journal.newest_credentials("account-2", 1) == ()
        journal = await store.reopen()
        assert await journal.newest_credentials("account-1", 1) == (("credential-1", b"one"),)
        clock.move(3600)  # back to the earlier one: the newer was revoked
        await self.accepted(journal, "key-3", "credential-9", b"nine, sealed again")
        assert await journal.newest_credentials("account-1", 1) == (("credential-9", b"nine, sealed again"),)

    async def test_one_that_is_not_kept_is_accepted_all_the_same_and_kept_later(self, journal: Journal) -> None:
        await self.accepted(journal, "key-1", "credential-1", None)
        assert await journal.newest_credentials("account-1", 1) == ()
        await self.accepted(journal, "key-2", "credential-1", b"one")
        await self.accepted(journal, "key-3", "credential-1", None)
        assert await journal.newest_credentials("account-1", 1) == (("credential-1", b"one"),)

    async def test_one_that_was_not_accepted_is_not_kept(self, journal: Journal) -> None:
        await journal.record(succeeding(await owned(journal), sealed_credential=b"one"))
        assert await journal.newest_credentials("account-1", 1) == ()

    async def test_in_use_all_the_time_it_is_not_written_all_the_time(self, journal: Journal) -> None:
        await self.accepted(journal, "key-1", "credential-1", b"one")
        await self.accepted(journal, "key-2", "credential-1", b"one, sealed again")
        assert await journal.newest_credentials("account-1", 1) == (("credential-1", b"one"),)


class TestExpiredLeases:
    """A lease is the right to send. When it is over, what the holder may have been doing decides what is true."""

    async def test_sending_is_doubt_from_the_instant_the_lease_is_over(
        self, journal: Journal, clock: HandClock
    ) -> None:
        operation = await owned(journal)
        clock.move(LEASE_S - 0.001)
        assert (await journal.claim(asking())).verdict is ClaimVerdict.IN_FLIGHT
        clock.move(0.001)
        claim = await journal.claim(asking())
        assert claim.verdict is ClaimVerdict.IN_DOUBT
        assert claim.sealed_request == b"sealed request"
        assert claim.operation == await read(journal, operation)
        assert claim.operation is not None
        assert (claim.operation.state, claim.operation.doubt) == (State.UNKNOWN, frozenset({1}))
        assert (claim.operation.version, claim.operation.due_at) == (2, clock.now())
        entry = (await journal.history(operation.id))[-1]
        assert (entry.source, entry.note, entry.events) == ("recovery", "lease expired", (Event.LEASE_EXPIRED,))

    @pytest.mark.parametrize("permitted", [True, False])
    async def test_a_mismatch_finds_the_doubt_too(self, journal: Journal, clock: HandClock, permitted: bool) -> None:
        operation = await owned(journal)
        clock.move(LEASE_S)
        claim = await journal.claim(asking(fingerprint="another", permitted=permitted))
        assert claim.verdict is ClaimVerdict.MISMATCH
        assert (await read(journal, operation)).state is State.UNKNOWN

    async def test_waiting_between_tries_was_not_sent_and_the_key_starts_anew(
        self, journal: Journal, clock: HandClock
    ) -> None:
        first = await journal.record(waiting(await owned(journal)))
        clock.move(LEASE_S)
        claim = await journal.claim(asking())
        assert claim.verdict is ClaimVerdict.OWNED
        assert claim.operation is not None
        assert (claim.operation.generation, claim.operation.provider_key) == (2, first.provider_key)
        ended = await read(journal, first)
        assert (ended.state, ended.key_released, ended.ended_at) == (State.FAILED, True, clock.now())
        assert await journal.sealed(first.id) == (None, None)

    async def test_a_claim_that_may_not_start_still_ends_what_was_never_sent(
        self, journal: Journal, clock: HandClock
    ) -> None:
        first = await journal.record(waiting(await owned(journal)))
        clock.move(LEASE_S)
        assert (await journal.claim(asking(permitted=False))).verdict is ClaimVerdict.ABSENT
        assert (await read(journal, first)).state is State.FAILED


class TestGenerations:
    """A key may start again only after an end that provably had no effect."""

    async def test_a_released_end_starts_the_next_generation_under_the_same_provider_key(
        self, journal: Journal
    ) -> None:
        first = await journal.record(declining(await owned(journal), released=True))
        second = await owned(journal, fingerprint="another body")
        assert (second.generation, second.provider_key) == (2, first.provider_key)
        assert (second.id, second.stamp) != (first.id, first.stamp)
        entry = (await journal.history(second.id))[0]
        assert entry.note == f"generation 2 of key; earlier operation {first.id}"
        assert await read(journal, first) == first

    async def test_an_equal_payload_under_a_kept_provider_key_keeps_its_stamp(self, journal: Journal) -> None:
        """Else its bytes would differ, and the provider would refuse it under that key."""
        first = await journal.record(declining(await owned(journal), released=True))
        second = await owned(journal)
        assert (second.provider_key, second.stamp) == (first.provider_key, first.stamp)
        assert await read(journal, second) == second

    async def test_the_newest_generation_holds_the_key(self, journal: Journal) -> None:
        await journal.record(declining(await owned(journal), released=True))
        second = await owned(journal)
        claim = await journal.claim(asking())
        assert (claim.verdict, claim.operation) == (ClaimVerdict.IN_FLIGHT, second)
        await journal.record(declining(second, released=True))
        assert (await owned(journal)).generation == 3

    async def test_a_header_key_is_spent_by_a_definite_end(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(declining(await owned(journal)))
        clock.move(3600)
        claim = await journal.claim(asking())
        assert (claim.verdict, claim.sealed_response) == (ClaimVerdict.REPLAY, b"sealed decline")
        assert (await journal.claim(asking(fingerprint="another"))).verdict is ClaimVerdict.MISMATCH

    async def test_a_purchase_key_replays_an_equal_decline_for_a_minute_then_starts_again(
        self, journal: Journal, clock: HandClock
    ) -> None:
        await journal.record(declining(await owned(journal, key_names_purchase=True)))
        clock.move(59.9)
        assert (await journal.claim(asking(key_names_purchase=True))).verdict is ClaimVerdict.REPLAY
        clock.move(0.1)
        second = await owned(journal, key_names_purchase=True)
        assert (second.generation, second.provider_key) == (2, generation_key(STEM, 2))

    async def test_a_purchase_key_starts_again_at_once_with_another_payload(self, journal: Journal) -> None:
        await journal.record(declining(await owned(journal, key_names_purchase=True)))
        assert (await owned(journal, key_names_purchase=True, fingerprint="another card")).generation == 2

    @pytest.mark.parametrize("changes", [{"incident": "success_after_failure"}, {"cancel_sent": True}])
    @pytest.mark.parametrize("released", [True, False])
    async def test_never_after_an_incident_or_a_cancel(
        self, journal: Journal, clock: HandClock, changes: dict[str, Any], released: bool
    ) -> None:
        ended = await journal.record(declining(await owned(journal, key_names_purchase=True), released=released))
        await journal.record(touching(replace(ended, **changes)))
        clock.move(3600)
        assert (await journal.claim(asking(key_names_purchase=True))).verdict is ClaimVerdict.REPLAY

    async def test_never_while_an_earlier_generation_is_disputed(self, journal: Journal, clock: HandClock) -> None:
        """The first was told declined and has paid after all; the second was declined. A third would pay twice."""
        first = await journal.record(declining(await owned(journal, key_names_purchase=True)))
        clock.move(60)
        await journal.record(declining(await owned(journal, key_names_purchase=True)))
        late = advance(first, Event.WEBHOOK_TOLD_SUCCESS)
        disputed = await journal.record(OperationChange(late, (Event.WEBHOOK_TOLD_SUCCESS,), source="webhook"))
        clock.move(60)
        for fingerprint in ("fingerprint-1", "another card"):
            claim = await journal.claim(asking(key_names_purchase=True, fingerprint=fingerprint))
            assert (claim.verdict, claim.operation) == (ClaimVerdict.REPLAY, disputed)
        await journal.record(touching(replace(disputed, incident=None), "closed by a person"))
        assert (await owned(journal, key_names_purchase=True)).generation == 3

    async def test_never_after_a_success(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(succeeding(await owned(journal, key_names_purchase=True)))
        clock.move(1e6)
        assert (await journal.claim(asking(key_names_purchase=True))).verdict is ClaimVerdict.REPLAY

    async def test_never_out_of_doubt(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(doubting(await owned(journal, key_names_purchase=True)))
        clock.move(1e6)
        assert (await journal.claim(asking(key_names_purchase=True))).verdict is ClaimVerdict.IN_DOUBT

    async def test_a_start_that_is_not_permitted_waits(self, journal: Journal) -> None:
        await journal.record(declining(await owned(journal), released=True))
        assert (await journal.claim(asking(permitted=False))).verdict is ClaimVerdict.ABSENT
        assert (await owned(journal)).generation == 2

    async def test_without_a_stem_the_provider_key_stays(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(declining(await owned(journal, key_names_purchase=True, provider_key=None)))
        clock.move(60)
        claim = await journal.claim(replace(asking(key_names_purchase=True, provider_key=None), key_stem=None))
        assert claim.operation is not None
        assert (claim.operation.generation, claim.operation.provider_key) == (2, None)

    async def test_a_hundred_claims_after_a_released_end_start_one_generation(self, journal: Journal) -> None:
        await journal.record(declining(await owned(journal), released=True))
        claims = await asyncio.gather(*(journal.claim(asking()) for _ in range(100)))
        assert [claim.verdict for claim in claims].count(ClaimVerdict.OWNED) == 1


async def test_a_claim_that_cannot_be_started_writes_nothing(journal: Journal) -> None:
    sending = advance(prepared(), Event.SEND_RECORDED)
    request = replace(asking(), fresh=sending)
    with pytest.raises(Exception, match="send_recorded cannot happen"):
        await journal.claim(request)
    assert await journal.read(sending.id) is None


async def test_claims_survive_a_restart(store: Store) -> None:
    operation = await owned(store.journal)
    ended = await store.journal.record(succeeding(operation))
    journal = await store.reopen()
    claim = await journal.claim(asking())
    assert (claim.verdict, claim.operation) == (ClaimVerdict.REPLAY, ended)
    assert claim.sealed_response == b"sealed response"


async def test_time_never_goes_back(store: Store) -> None:
    """Not when the clock is set back, and not across a restart."""
    operation = await owned(store.journal)
    store.clock.move(-3600)
    claim = await store.journal.claim(asking("key-2"))
    assert claim.now == operation.created_at
    journal = await store.reopen()
    later = await journal.record(OperationChange(operation, ()))
    assert later.updated_at == operation.created_at
    store.clock.move(3600 + 5)
    assert (await journal.claim(asking("key-3"))).now == operation.created_at + 5


async def test_time_that_only_an_answer_told_does_not_go_back_across_a_restart(store: Store) -> None:
    await owned(store.journal)
    store.clock.move(20)
    told = (await store.journal.claim(asking())).now  # wrote nothing
    store.clock.move(-20)
    journal = await store.reopen()
    assert (await journal.claim(asking())).now == told
