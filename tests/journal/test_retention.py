"""Retention: what ended long ago becomes a tombstone, which answers for its keys; then that goes too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paywitness.core.claim import AliasKind, ClaimVerdict, Tombstone, maker_of
from paywitness.core.errors import StaleWrite
from paywitness.core.operation import Lease, Operation, Outcome, RepeatPaymentRule
from paywitness.core.provider_contract import OperationKind
from paywitness.core.webhook_event import MatchKey
from paywitness.journal.base import Journal, OperationChange, OperationQuery, StoredWebhookEvent, WebhookEventResult
from paywitness.journal.sqlite import retention
from paywitness.journal.tombstones import abandoned_key, abandoned_operation
from tests.journal.conftest import Store
from tests.journal.samples import (
    FINGERPRINT,
    TARGET,
    HandClock,
    acting,
    asking,
    declining,
    doubting,
    falling_back,
    intent,
    owned,
    pending,
    succeeding,
    telling,
    touching,
    unheard,
    waiting,
)

DAY_S = 86_400.0


async def retire(journal: Journal, limit: int = 100) -> int:
    return await journal.retire(retention_s=30 * DAY_S, tombstone_s=90 * DAY_S, limit=limit)


async def ended(journal: Journal, key: str = "key-1", **changes: Any) -> Operation:
    return await journal.record(succeeding(await owned(journal, key, **changes)))


class TestOperations:
    async def test_after_its_retention_only_a_tombstone_is_left(self, store: Store) -> None:
        journal, clock = store.journal, store.clock
        paid = await ended(journal)
        clock.move(30 * DAY_S - 1)
        assert await retire(journal) == 0
        clock.move(1)
        assert await retire(journal) == 1
        assert await retire(journal) == 0
        journal = await store.reopen()
        assert await journal.read(paid.id) is None
        assert await journal.history(paid.id) == ()
        assert await journal.sealed(paid.id) == (None, None)
        assert await journal.find_operations(OperationQuery()) == ()
        claim = await journal.claim(asking())
        assert (claim.verdict, claim.operation) == (ClaimVerdict.EXPIRED, None)
        assert claim.tombstone == Tombstone(
            key=paid.key,
            operation_id=paid.id,
            provider="acme",
            operation="authorization",
            client_key="client-key-1",
            outcome=Outcome.SUCCEEDED,
            reference=paid.reference,
            ended_at=paid.ended_at or 0.0,
            maker=maker_of(paid),
        )

    @pytest.mark.parametrize("permitted", [True, False])
    @pytest.mark.parametrize("fingerprint", ["fingerprint-1", "another"])
    async def test_an_old_key_never_executes_again_silently(
        self, journal: Journal, clock: HandClock, permitted: bool, fingerprint: str
    ) -> None:
        await journal.record(declining(await owned(journal), released=True))
        clock.move(31 * DAY_S)
        await retire(journal)
        request = asking(permitted=permitted, fingerprint=fingerprint)
        claim = await journal.claim(request)
        assert claim.verdict is ClaimVerdict.EXPIRED
        assert claim.tombstone is not None
        assert claim.tombstone.outcome is Outcome.DECLINED
        assert await journal.read(request.fresh.id) is None

    async def test_after_its_own_time_the_tombstone_goes_too(self, journal: Journal, clock: HandClock) -> None:
        await ended(journal)
        clock.move(31 * DAY_S)
        assert await retire(journal) == 1
        clock.move(90 * DAY_S - 1)
        assert await retire(journal) == 0
        assert (await journal.claim(asking())).verdict is ClaimVerdict.EXPIRED
        clock.move(1)
        assert await retire(journal) == 1
        await owned(journal)

    async def test_never_what_is_open(self, journal: Journal, clock: HandClock) -> None:
        for number, change in enumerate((doubting, pending)):
            await journal.record(change(await owned(journal, f"key-{number}")))
        asked = acting(await owned(journal, "acting"))
        await journal.record(replace(asked, operation=replace(asked.operation, due_at=clock.now() + 2000 * DAY_S)))
        await journal.record(waiting(await owned(journal, "waiting")))
        await owned(journal, "sending")
        clock.move(1000 * DAY_S)
        assert await retire(journal) == 0
        assert len(await journal.find_operations(OperationQuery())) == 5

    async def test_never_what_is_disputed_or_held(self, journal: Journal, clock: HandClock) -> None:
        disputed = await journal.record(touching(replace(await ended(journal), incident="two_references")))
        late = await ended(journal, "key-2")
        held = await journal.record(
            OperationChange(replace(late, lease=Lease("holder", 0.0)), (), source="harvest", lease_s=1000 * DAY_S)
        )
        clock.move(31 * DAY_S)
        assert await retire(journal) == 0
        await journal.record(touching(replace(disputed, incident=None)))
        await journal.record(touching(replace(held, lease=None)))
        assert await retire(journal) == 2

    async def test_what_ended_late_is_kept_from_its_end_on(self, journal: Journal, clock: HandClock) -> None:
        doubted = await journal.record(doubting(await owned(journal)))
        clock.move(40 * DAY_S)
        await journal.record(succeeding(doubted))
        clock.move(20 * DAY_S)
        assert await retire(journal) == 0
        clock.move(10 * DAY_S)
        assert await retire(journal) == 1

    async def test_at_most_so_many_in_one_call_oldest_first(self, journal: Journal, clock: HandClock) -> None:
        for number in range(7):
            await ended(journal, f"key-{number}")
        clock.move(31 * DAY_S)
        assert await retire(journal, limit=3) == 3
        left = [operation.key for operation in await journal.find_operations(OperationQuery())]
        assert left == ["key-6", "key-5", "key-4", "key-3"]
        assert [await retire(journal, limit=3) for _ in range(3)] == [3, 1, 0]

    async def test_what_stays_does_not_hold_up_what_comes_after_it(
        self, journal: Journal, clock: HandClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "_SCAN_MAX", 5)
        for number in range(12):
            await journal.record(doubting(await owned(journal, f"open-{number}")))
        for number in range(4):
            await ended(journal, f"key-{number}")
        clock.move(31 * DAY_S)
        assert sum([await retire(journal, limit=2) for _ in range(9)]) == 4

    async def test_an_earlier_generation_goes_and_the_later_one_stays(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(declining(await owned(journal), released=True))
        clock.move(31 * DAY_S)
        second = await ended(journal)
        assert await retire(journal) == 1
        claim = await journal.claim(asking())
        assert (claim.verdict, claim.operation) == (ClaimVerdict.REPLAY, second)
        clock.move(31 * DAY_S)
        assert await retire(journal) == 1
        claim = await journal.claim(asking())
        assert claim.tombstone is not None
        assert claim.tombstone.operation_id == second.id

    async def test_it_frees_its_guard(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(unheard(succeeding(await owned(journal, guard=intent()))))
        clock.move(31 * DAY_S)
        await retire(journal)
        second = await owned(journal, "key-2", guard=intent())
        assert (await journal.record(succeeding(second))).incident is None

    async def test_an_id_that_is_gone_is_stale(self, journal: Journal, clock: HandClock) -> None:
        paid = await ended(journal)
        clock.move(31 * DAY_S)
        await retire(journal)
        with pytest.raises(StaleWrite):
            await journal.record(touching(paid))


class TestAbandoned:
    """S5: a customer who was asked to act and never did. `acting` leaves no time at which it is inquired about."""

    async def test_it_becomes_a_tombstone_as_long_after_its_last_inquiry(self, store: Store) -> None:
        journal, clock = store.journal, store.clock
        asked = await journal.record(acting(await owned(journal, guard=intent())))
        clock.move(2 * DAY_S)
        await journal.record(touching(asked))  # the last inquiry, in vain
        clock.move(30 * DAY_S - 1)
        assert await retire(journal) == 0
        clock.move(1)
        assert await retire(journal) == 1
        journal = await store.reopen()
        assert await journal.read(asked.id) is None
        claim = await journal.claim(asking(guard=intent()))
        assert claim.verdict is ClaimVerdict.EXPIRED
        assert claim.tombstone is not None
        assert (claim.tombstone.operation_id, claim.tombstone.outcome) == (asked.id, Outcome.REQUIRES_ACTION)

    async def test_its_names_outlive_its_tombstone(self, journal: Journal, clock: HandClock) -> None:
        asked = await owned(journal, guard=intent())
        change = acting(asked)
        await journal.record(replace(change, operation=replace(change.operation, reference="ch_1")))
        clock.move(31 * DAY_S)
        assert await retire(journal) == 1
        clock.move(91 * DAY_S)
        assert await retire(journal) == 1
        names = (
            (MatchKey.REFERENCE, "account-1", "ch_1"),
            (MatchKey.OPERATION_ID, "account-1", asked.stamp),
            (MatchKey.CLIENT_KEY, "account-1", "client-key-1"),
            (MatchKey.PROVIDER_KEY, "account-1", "provider-key-1"),
            (MatchKey.INTENT, "", "intent-1"),
        )
        keys = tuple(abandoned_key(kind, "acme", account, name) for kind, account, name in names if name)
        rows = await journal.ledger_rows(keys)
        assert [row and abandoned_operation(row) for row in rows] == [asked.id] * len(keys)
        another = abandoned_key(MatchKey.REFERENCE, "acme", "account-2", "ch_1")
        assert await journal.ledger_rows((another,)) == (None,)
        clock.move(400 * DAY_S)
        await retire(journal)
        assert set(await journal.ledger_rows(keys)) == {None}

    async def test_never_if_it_holds_its_intent(self, journal: Journal, clock: HandClock) -> None:
        guard = intent(during_action=RepeatPaymentRule.BLOCK)
        await journal.record(acting(await owned(journal, guard=guard)))
        clock.move(1000 * DAY_S)
        assert await retire(journal) == 0
        assert (await journal.claim(asking("key-2", guard=guard))).verdict is not ClaimVerdict.OWNED

    @pytest.mark.parametrize(
        "changes", [{"incident": "two_references"}, {"paid_elsewhere": True}, {"kind": OperationKind.REFUND}]
    )
    async def test_never_if_something_is_open_in_it(
        self, journal: Journal, clock: HandClock, changes: dict[str, Any]
    ) -> None:
        kind = {"kind": changes["kind"]} if "kind" in changes else {}
        change = acting(await owned(journal, guard=TARGET, **kind))
        await journal.record(replace(change, operation=replace(change.operation, **changes)))
        clock.move(1000 * DAY_S)
        assert await retire(journal) == 0

    async def test_it_goes_with_what_it_stands_for(self, journal: Journal, clock: HandClock) -> None:
        first, claim = await journal.fall_back(*falling_back(await owned(journal, guard=intent())))
        assert claim.operation is not None
        await journal.record(acting(claim.operation))
        clock.move(31 * DAY_S)
        assert await retire(journal) == 2
        repeated = await journal.claim(asking(guard=intent()))
        assert repeated.tombstone is not None
        assert (repeated.tombstone.operation_id, repeated.tombstone.outcome) == (first.id, Outcome.REQUIRES_ACTION)


class TestAliases:
    async def test_keys_that_were_given_its_answer_get_a_tombstone_too(self, store: Store) -> None:
        journal, clock = store.journal, store.clock
        first = await owned(journal, guard=intent())
        assert (await journal.claim(asking("joined", guard=intent()))).alias is AliasKind.JOINED
        await journal.record(succeeding(first))
        taken = await journal.record(unheard(succeeding(await owned(journal, "key-2", guard=FINGERPRINT))))
        assert (await journal.claim(asking("taken", guard=FINGERPRINT))).alias is AliasKind.TAKEN
        clock.move(31 * DAY_S)
        assert await retire(journal) == 2
        journal = await store.reopen()
        for key, guard, gone in (("joined", intent(), first), ("taken", FINGERPRINT, taken)):
            claim = await journal.claim(asking(key, guard=guard))
            assert (claim.verdict, claim.operation) == (ClaimVerdict.EXPIRED, None)
            assert claim.tombstone is not None
            assert (claim.tombstone.key, claim.tombstone.client_key) == (key, f"client-{key}")
            assert (claim.tombstone.operation_id, claim.tombstone.outcome) == (gone.id, Outcome.SUCCEEDED)

    async def test_a_key_that_was_refused_is_free(self, journal: Journal, clock: HandClock) -> None:
        first = await owned(journal, guard=TARGET)
        assert (await journal.claim(asking("refused", guard=TARGET))).alias is AliasKind.REFUSED
        await journal.record(succeeding(first))
        clock.move(31 * DAY_S)
        await retire(journal)
        await owned(journal, "refused", guard=TARGET)

    async def test_refused_keys_of_an_operation_that_stays_open_are_forgotten(self, store: Store) -> None:
        """S5: each key that a held guard refuses is kept for the retention, however long the guard is held."""
        journal, clock = store.journal, store.clock
        first = await journal.record(doubting(await owned(journal, guard=intent())))
        joined = await journal.claim(asking("joined", guard=intent()))
        assert joined.alias is AliasKind.JOINED
        for number in range(5):
            refused = asking(f"refused-{number}", guard=intent(), fingerprint="another")
            assert (await journal.claim(refused)).alias is AliasKind.REFUSED
        clock.move(30 * DAY_S - 1)
        assert await retire(journal) == 0
        late = asking("refused-4", guard=intent(), fingerprint="another")
        assert (await journal.claim(late)).alias is AliasKind.REFUSED  # and is kept from now on
        clock.move(1)
        assert [await retire(journal, limit=3) for _ in range(3)] == [3, 1, 0]
        journal = await store.reopen()
        found = [
            await journal.find_operations(OperationQuery(key=f"client-{key}"))
            for key in ("joined", "refused-0", "refused-3", "refused-4")
        ]
        assert [len(operations) for operations in found] == [1, 0, 0, 1]
        assert (await journal.claim(asking("refused-0", guard=intent(), fingerprint="another"))).operation == first
        assert (await journal.claim(asking("joined", guard=intent()))).alias is AliasKind.JOINED

    async def test_a_refused_key_that_joined_since_is_not_forgotten(self, journal: Journal, clock: HandClock) -> None:
        await journal.record(doubting(await owned(journal, guard=intent())))
        await journal.claim(asking("key-2", guard=intent(), fingerprint="another"))
        assert (await journal.claim(asking("key-2", guard=intent()))).alias is AliasKind.JOINED
        clock.move(31 * DAY_S)
        assert await retire(journal) == 0
        assert len(await journal.find_operations(OperationQuery(key="client-key-2"))) == 1


class TestFallbacks:
    async def fallen(self, journal: Journal) -> tuple[Operation, Operation]:
        first, claim = await journal.fall_back(*falling_back(await owned(journal, guard=intent())))
        assert claim.operation is not None
        return first, claim.operation

    async def test_the_first_stays_as_long_as_what_stands_for_it(self, journal: Journal, clock: HandClock) -> None:
        _, second = await self.fallen(journal)
        await journal.record(doubting(second))
        clock.move(1000 * DAY_S)
        assert await retire(journal) == 0
        assert (await journal.claim(asking(guard=intent()))).verdict is ClaimVerdict.IN_DOUBT

    async def test_then_both_go_and_the_firsts_tombstone_tells_the_seconds_outcome(
        self, journal: Journal, clock: HandClock
    ) -> None:
        first, second = await self.fallen(journal)
        await journal.claim(asking("joined", guard=intent()))
        paid = await journal.record(succeeding(second))
        clock.move(31 * DAY_S)
        assert await retire(journal) == 2
        for key in ("key-1", "joined"):
            claim = await journal.claim(asking(key, guard=intent()))
            assert claim.verdict is ClaimVerdict.EXPIRED
            assert claim.tombstone is not None
            assert (claim.tombstone.operation_id, claim.tombstone.outcome) == (first.id, Outcome.SUCCEEDED)
            assert claim.tombstone.reference == paid.reference


class TestReaders:
    async def test_what_a_reader_of_outcomes_has_not_come_to_stays(self, journal: Journal, clock: HandClock) -> None:
        for number in range(3):
            operation = await owned(journal, f"key-{number}")
            await journal.record(telling(operation, succeeding(operation)))
        rows = await journal.announcements(0, limit=10)
        await journal.move_cursor("slow", rows[0].seq)
        await journal.move_cursor("quick", rows[2].seq)
        clock.move(31 * DAY_S)
        assert await retire(journal) == 1
        assert await journal.announcements(0, limit=10) == rows[1:]
        await journal.move_cursor("slow", rows[2].seq)
        assert await retire(journal) == 2
        assert await journal.announcements(0, limit=10) == ()

    async def test_numbers_are_not_given_again(self, journal: Journal, clock: HandClock) -> None:
        operation = await owned(journal)
        await journal.record(telling(operation, succeeding(operation)))
        (before,) = await journal.announcements(0, limit=10)
        clock.move(31 * DAY_S)
        await retire(journal)
        operation = await owned(journal, "key-2")
        await journal.record(telling(operation, succeeding(operation)))
        (after,) = await journal.announcements(before.seq, limit=10)
        assert after.operation.key == "key-2"


class TestNotices:
    async def test_those_that_are_done_go_with_their_time(self, journal: Journal, clock: HandClock) -> None:
        now = clock.now()
        kept = StoredWebhookEvent(0, "acme", "", "done", now, b"sealed", result=WebhookEventResult.APPLIED)
        await journal.store_webhook_event(kept)
        await journal.store_webhook_event(replace(kept, event_id="new", received_at=now + 20 * DAY_S))
        await journal.store_webhook_event(replace(kept, event_id="waits", result=WebhookEventResult.WAITING))
        await journal.store_webhook_event(replace(kept, event_id="to relay", relay_due_at=now))
        clock.move(31 * DAY_S)
        assert await retire(journal) == 1
        new = [
            await journal.store_webhook_event(replace(kept, event_id=name))
            for name in ("done", "new", "waits", "to relay")
        ]
        assert new == [True, False, False, False]

    async def test_at_most_so_many(self, journal: Journal, clock: HandClock) -> None:
        kept = StoredWebhookEvent(0, "acme", "", "", clock.now(), b"sealed", result=WebhookEventResult.UNMATCHED)
        for number in range(5):
            await journal.store_webhook_event(replace(kept, event_id=f"evt_{number}"))
        clock.move(31 * DAY_S)
        assert [await retire(journal, limit=3) for _ in range(3)] == [3, 2, 0]


class TestCredentials:
    """S6: what the provider accepted once is not accepted for ever."""

    async def test_the_newest_of_an_account_outlives_the_others(self, store: Store) -> None:
        journal, clock = store.journal, store.clock
        for number in (1, 2):
            change = succeeding(await owned(journal, f"key-{number}", credential=f"credential-{number}"))
            await journal.record(replace(change, accepted_credential=True, sealed_credential=b"%d" % number))
            clock.move(61)
        assert await journal.accepts_credential("account-1", "credential-1")
        clock.move(30 * DAY_S)
        await retire(journal)
        assert not await journal.accepts_credential("account-1", "credential-1")
        assert await journal.accepts_credential("account-1", "credential-2")
        assert await journal.newest_credentials("account-1", 1) == (("credential-2", b"2"),)
        clock.move(400 * DAY_S)
        await retire(journal)
        assert not await journal.accepts_credential("account-1", "credential-2")
        assert await journal.newest_credentials("account-1", 1) == ()
