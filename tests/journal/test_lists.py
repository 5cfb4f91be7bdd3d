"""What people and gauges ask for: lists, counts of doubt; and what the journal keeps beside operations."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from paywitness.core.errors import JournalUnavailable, JournalUnusable
from paywitness.core.lifecycle import Event, advance
from paywitness.core.money import Money
from paywitness.core.operation import DoubtCount, Guard, Operation, State
from paywitness.core.provider_contract import OperationKind
from paywitness.journal.base import Journal, OperationChange, OperationQuery, PolicyRevision
from tests.journal.conftest import Store
from tests.journal.samples import (
    DOUBTS,
    FINGERPRINT,
    TARGET,
    HandClock,
    asking,
    declining,
    doubting,
    intent,
    owned,
    succeeding,
    waiting,
)


def ids(operations: tuple[Operation, ...]) -> list[str]:
    return [operation.id for operation in operations]


def in_review(operation: Operation) -> OperationChange:
    return OperationChange(advance(operation, Event.PARKED), (Event.PARKED,))


class TestListing:
    @pytest.fixture
    async def kept(self, journal: Journal) -> dict[str, Operation]:
        """One operation in each of seven standings, by name, oldest first."""
        kept = {
            "sending": await owned(journal, "key-1"),
            "waiting": await journal.record(waiting(await owned(journal, "key-2"))),
            "succeeded": await journal.record(succeeding(await owned(journal, "key-3"))),
            "failed": await journal.record(declining(await owned(journal, "key-4", provider="other"))),
            "unknown": await journal.record(doubting(await owned(journal, "key-5", provider="other"))),
            "review": await journal.record(doubting(await owned(journal, "key-6", operation="refund"))),
            "incident": await journal.record(declining(await owned(journal, "key-7"))),
        }
        kept["review"] = await journal.record(in_review(kept["review"]))
        late = advance(kept["incident"], Event.WEBHOOK_TOLD_SUCCESS)
        kept["incident"] = await journal.record(OperationChange(late, (Event.WEBHOOK_TOLD_SUCCESS,), source="webhook"))
        return kept

    async def test_all_of_them_newest_first(self, journal: Journal, kept: dict[str, Operation]) -> None:
        assert await journal.find_operations(OperationQuery()) == tuple(reversed(kept.values()))

    @pytest.mark.parametrize(
        ("listing", "names"),
        [
            (OperationQuery(provider="other"), ["unknown", "failed"]),
            (OperationQuery(provider="nobody"), []),
            (OperationQuery(operation="refund"), ["review"]),
            (OperationQuery(states=frozenset({State.SENDING})), ["sending"]),
            (OperationQuery(states=frozenset({State.BACKOFF})), ["waiting"]),
            (OperationQuery(states=frozenset({State.SUCCEEDED})), ["succeeded"]),
            (OperationQuery(states=frozenset({State.FAILED})), ["incident", "failed"]),
            (OperationQuery(states=DOUBTS), ["review", "unknown"]),
            (OperationQuery(states=DOUBTS, provider="other"), ["unknown"]),
            (OperationQuery(states=DOUBTS, limit=1), ["review"]),
            (OperationQuery(states=frozenset({State.PENDING})), []),
            (OperationQuery(key="client-key-3"), ["succeeded"]),
            (OperationQuery(key="provider-key-3"), ["succeeded"]),
            (OperationQuery(key="key-3"), []),
            (OperationQuery(key="client-key-3", states=DOUBTS), []),
            (OperationQuery(key="client-key-5", states=DOUBTS), ["unknown"]),
            (OperationQuery(incidents_only=True), ["incident"]),
            (OperationQuery(incidents_only=True, states=frozenset({State.FAILED})), ["incident"]),
            (OperationQuery(incidents_only=True, provider="other"), []),
        ],
    )
    async def test_by_what_is_asked(
        self, journal: Journal, kept: dict[str, Operation], listing: OperationQuery, names: list[str]
    ) -> None:
        assert await journal.find_operations(listing) == tuple(kept[name] for name in names)

    async def test_every_state_can_be_asked_for_at_once(self, journal: Journal, kept: dict[str, Operation]) -> None:
        assert await journal.find_operations(OperationQuery(states=frozenset(State))) == tuple(reversed(kept.values()))

    async def test_by_reference(self, journal: Journal, kept: dict[str, Operation]) -> None:
        succeeded = kept["succeeded"]
        assert await journal.find_operations(OperationQuery(reference=succeeded.reference)) == (succeeded,)
        assert await journal.find_operations(OperationQuery(reference="ch_unknown")) == ()

    async def test_by_stamp(self, journal: Journal) -> None:
        """Our id in the provider's object: an operation's own, or the one that a kept provider key kept."""
        first = await journal.record(declining(await owned(journal), released=True))
        second = await owned(journal)
        assert second.stamp == first.id
        assert ids(await journal.find_operations(OperationQuery(stamp=first.id))) == [second.id, first.id]
        assert ids(await journal.find_operations(OperationQuery(stamp=second.id))) == [second.id]
        assert await journal.find_operations(OperationQuery(stamp="")) == ()

    async def test_by_guard_those_that_keep_it(self, journal: Journal) -> None:
        await journal.record(declining(await owned(journal, "key-1", guard=intent())))
        paid = await journal.record(succeeding(await owned(journal, "key-2", guard=intent())))
        sending = await owned(journal, "key-3", guard=intent())
        await owned(journal, "key-4", guard=intent("another"))
        assert await journal.find_operations(OperationQuery(guard="intent-1")) == (sending, paid)
        assert await journal.find_operations(OperationQuery(guard="intent-1", states=frozenset({State.SENDING}))) == (
            sending,
        )

    async def test_by_subject_all_of_them(self, journal: Journal) -> None:
        first = await journal.record(declining(await owned(journal, "key-1", guard=intent())))
        second = await owned(journal, "key-2", guard=intent())
        await owned(journal, "key-3", guard=FINGERPRINT)
        await owned(journal, "key-4")
        assert await journal.find_operations(OperationQuery(subject="order of intent-1")) == (second, first)
        assert await journal.find_operations(OperationQuery(subject="")) == ()

    async def test_by_money_to_the_minor_unit(self, journal: Journal) -> None:
        first = await owned(journal, "key-1", money=Money(100, "EUR"))
        await owned(journal, "key-2", money=Money(101, "EUR"))
        await owned(journal, "key-3", money=Money(100, "USD"))
        await owned(journal, "key-4", money=None)
        last = await owned(journal, "key-5", money=Money(100, "EUR"))
        assert await journal.find_operations(OperationQuery(money=Money(100, "EUR"))) == (last, first)
        assert await journal.find_operations(OperationQuery(money=Money(100, "EUR"), before=last.id)) == (first,)
        assert await journal.find_operations(OperationQuery(money=Money(100, "EUR"), before=first.id)) == ()
        assert await journal.find_operations(OperationQuery(money=Money(100, "EUR"), key="client-key-5")) == (last,)
        sending = frozenset({State.SENDING})
        assert await journal.find_operations(OperationQuery(money=Money(100, "EUR"), states=sending, limit=1)) == (
            last,
        )

    async def test_by_payment_its_steps_and_follow_ups(self, journal: Journal) -> None:
        first = await journal.record(succeeding(await owned(journal, "key-1", id="op_A1", payment="op_A1")))
        second = await owned(journal, "key-2", id="op_A2", payment="op_A1", kind=OperationKind.REFUND)
        await owned(journal, "key-3", id="op_A3", payment="op_A3")
        await owned(journal, "key-4", id="op_A4")
        declined = await journal.record(declining(await owned(journal, "key-5", id="op_A5", payment="op_A1")))
        query = OperationQuery(payment="op_A1")
        assert await journal.find_operations(query) == (declined, second, first)
        assert await journal.find_operations(replace(query, before="op_A5", limit=1)) == (second,)
        assert await journal.find_operations(replace(query, states=frozenset({State.SUCCEEDED}))) == (first,)
        assert await journal.find_operations(replace(query, kind=OperationKind.REFUND)) == (second,)
        assert await journal.find_operations(OperationQuery(payment="op_A4")) == ()
        # A step that turns out to be another payment's is found there, and no longer by its own id.
        moved = await journal.record(OperationChange(second.changed(payment="op_A3"), ()))
        assert ids(await journal.find_operations(OperationQuery(payment="op_A3"))) == ["op_A3", moved.id]
        assert ids(await journal.find_operations(query)) == [declined.id, first.id]

    async def test_by_account_and_kind(self, journal: Journal) -> None:
        first = await owned(journal, "key-1", account="account-2")
        await owned(journal, "key-2")
        refund = await owned(journal, "key-3", account="account-3", kind=OperationKind.REFUND)
        query = OperationQuery(accounts=frozenset({"account-2", "account-3"}))
        assert await journal.find_operations(query) == (refund, first)
        assert await journal.find_operations(replace(query, kind=OperationKind.REFUND)) == (refund,)
        assert await journal.find_operations(replace(query, before=refund.id, limit=1)) == (first,)
        assert await journal.find_operations(OperationQuery(kind=OperationKind.VOID)) == ()

    @pytest.mark.parametrize("guard", [intent(), TARGET])
    async def test_by_a_key_that_was_given_or_refused_it(self, journal: Journal, guard: Guard) -> None:
        first = await owned(journal, "key-1", guard=guard)
        await journal.claim(asking("key-2", guard=guard))
        assert await journal.find_operations(OperationQuery(key="client-key-2")) == (first,)
        assert await journal.find_operations(OperationQuery(key="client-key-2", states=DOUBTS)) == ()

    async def test_page_by_page(self, journal: Journal, kept: dict[str, Operation]) -> None:
        everything = await journal.find_operations(OperationQuery())
        first = await journal.find_operations(OperationQuery(limit=3))
        second = await journal.find_operations(OperationQuery(limit=3, before=first[-1].id))
        third = await journal.find_operations(OperationQuery(limit=3, before=second[-1].id))
        assert first + second + third == everything
        assert await journal.find_operations(OperationQuery(limit=3, before=third[-1].id)) == ()

    async def test_page_by_page_within_states(self, journal: Journal, kept: dict[str, Operation]) -> None:
        (first,) = await journal.find_operations(OperationQuery(states=DOUBTS, limit=1))
        (second,) = await journal.find_operations(OperationQuery(states=DOUBTS, limit=1, before=first.id))
        assert ids((first, second)) == [kept["review"].id, kept["unknown"].id]

    async def test_all_generations_of_a_key(self, journal: Journal) -> None:
        first = await journal.record(declining(await owned(journal), released=True))
        second = await owned(journal)
        assert ids(await journal.find_operations(OperationQuery(key="client-key-1"))) == [second.id, first.id]

    async def test_a_key_that_goes_upstream_as_it_came_is_found_once(self, journal: Journal) -> None:
        operation = await owned(journal, client_key="same", provider_key="same")
        assert await journal.find_operations(OperationQuery(key="same")) == (operation,)

    @pytest.mark.parametrize(("limit", "found"), [(-5, 1), (0, 1), (1, 1), (500, 500), (10_000, 500)])
    async def test_never_more_than_five_hundred(self, journal: Journal, limit: int, found: int) -> None:
        for first in range(0, 501, 50):  # a busy Redis must not be made to wait for all of them at once
            numbers = range(first, min(first + 50, 501))
            await asyncio.gather(*(journal.claim(asking(f"key-{number}")) for number in numbers))
        assert len(await journal.find_operations(OperationQuery(limit=limit))) == found


class TestDoubtCounts:
    async def test_nothing_in_doubt(self, journal: Journal) -> None:
        await journal.record(succeeding(await owned(journal)))
        assert await journal.doubt_counts() == ()

    async def test_by_provider_operation_currency_and_state(self, journal: Journal, clock: HandClock) -> None:
        started_at = clock.now()
        await journal.record(doubting(await owned(journal, "key-1", money=Money(100, "EUR"))))
        clock.move(1)
        await journal.record(doubting(await owned(journal, "key-2", money=Money(250, "EUR"))))
        await journal.record(doubting(await owned(journal, "key-3", money=Money(7, "JPY"))))
        await journal.record(doubting(await owned(journal, "key-4", money=None)))
        parked = await journal.record(doubting(await owned(journal, "key-5", money=Money(9, "EUR"))))
        await journal.record(in_review(parked))
        await journal.record(doubting(await owned(journal, "key-6", provider="other", operation="refund")))
        await owned(journal, "key-7")
        later = started_at + 1
        assert set(await journal.doubt_counts()) == {
            DoubtCount("acme", "authorization", "EUR", State.UNKNOWN, 2, 350, started_at),
            DoubtCount("acme", "authorization", "JPY", State.UNKNOWN, 1, 7, later),
            DoubtCount("acme", "authorization", "", State.UNKNOWN, 1, 0, later),
            DoubtCount("acme", "authorization", "EUR", State.REQUIRES_REVIEW, 1, 9, later),
            DoubtCount("other", "refund", "EUR", State.UNKNOWN, 1, 1250, later),
        }

    async def test_a_doubt_that_is_closed_counts_no_more(self, journal: Journal) -> None:
        doubted = await journal.record(doubting(await owned(journal)))
        assert len(await journal.doubt_counts()) == 1
        await journal.record(succeeding(doubted))
        assert await journal.doubt_counts() == ()

    async def test_sums_too_large_for_64_bits_are_exact(self, journal: Journal) -> None:
        much = 10**18 - 1
        for number in range(20):
            await journal.record(doubting(await owned(journal, f"key-{number}", money=Money(much, "EUR"))))
        (count,) = await journal.doubt_counts()
        assert (count.count, count.minor_units) == (20, 20 * much)

    async def test_negative_amounts_are_exact(self, journal: Journal) -> None:
        for number, amount in enumerate((-1, -(2**40), 5)):
            await journal.record(doubting(await owned(journal, f"key-{number}", money=Money(amount, "EUR"))))
        (count,) = await journal.doubt_counts()
        assert count.minor_units == 4 - 2**40


class TestRevisions:
    async def test_the_latest_of_each_provider(self, store: Store) -> None:
        journal, clock = store.journal, store.clock
        assert await journal.latest_revision("acme") is None
        await journal.keep_revision("acme", "r1", "content 1")
        await journal.keep_revision("other", "r9", "content 9")
        first = PolicyRevision("acme", "r1", "content 1", clock.now())
        assert await journal.latest_revision("acme") == first
        clock.move(1)
        await journal.keep_revision("acme", "r2", "content 2")
        assert await (await store.reopen()).latest_revision("acme") == PolicyRevision(
            "acme", "r2", "content 2", clock.now()
        )

    async def test_every_one_of_them_by_its_name(self, journal: Journal) -> None:
        """An operation is judged under the revision that is pinned to it."""
        for revision in ("r1", "r2"):
            await journal.keep_revision("acme", revision, f"content of {revision}")
        kept = await journal.revision("acme", "r1")
        assert kept is not None
        assert kept.content == "content of r1"
        assert await journal.revision("acme", "r3") is None
        assert await journal.revision("other", "r1") is None

    async def test_one_that_comes_back_is_the_latest_again(self, journal: Journal) -> None:
        for revision in ("r1", "r2", "r1"):
            await journal.keep_revision("acme", revision, f"content of {revision}")
        latest = await journal.latest_revision("acme")
        assert latest is not None
        assert (latest.revision, latest.content) == ("r1", "content of r1")

    async def test_keeping_the_latest_again_changes_nothing(self, journal: Journal, clock: HandClock) -> None:
        await journal.keep_revision("acme", "r1", "content")
        first = await journal.latest_revision("acme")
        clock.move(1)
        await journal.keep_revision("acme", "r1", "content")
        assert await journal.latest_revision("acme") == first


class TestIdentity:
    async def test_the_first_check_value_is_kept(self, store: Store) -> None:
        await store.journal.check_identity("value")
        await store.journal.check_identity("value")
        await (await store.reopen()).check_identity("value")

    async def test_another_one_is_refused(self, store: Store) -> None:
        await store.journal.check_identity("value")
        with pytest.raises(JournalUnusable, match="another identity secret"):
            await (await store.reopen()).check_identity("another")


class TestHealthAndEnd:
    async def test_an_open_journal_is_healthy(self, journal: Journal) -> None:
        assert await journal.healthy()

    async def test_a_closed_one_is_not_and_takes_nothing(self, journal: Journal) -> None:
        await journal.close()
        assert not await journal.healthy()
        with pytest.raises(JournalUnavailable, match="closed"):
            await journal.claim(asking())
        with pytest.raises(JournalUnavailable, match="closed"):
            await journal.read("op_1")

    async def test_closing_twice_is_closing_once(self, journal: Journal) -> None:
        await journal.close()
        await journal.close()

    async def test_what_waits_when_it_closes_is_written(self, store: Store) -> None:
        waiting_claims = [asyncio.ensure_future(store.journal.claim(asking(f"key-{number}"))) for number in range(50)]
        await asyncio.sleep(0)
        journal = await store.reopen()
        claims = await asyncio.gather(*waiting_claims)
        for claim in claims:
            assert claim.operation is not None
            assert await journal.read(claim.operation.id) == claim.operation
