"""Records: compare and set on the version, and one entry of history for each."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from paywitness.core.consequences import announcement_of
from paywitness.core.errors import IllegalTransition, StaleWrite
from paywitness.core.lifecycle import Event, advance
from paywitness.core.operation import (
    AnnouncementKind,
    Finding,
    FindingKind,
    Guard,
    GuardKind,
    HistoryEntry,
    Lease,
    Operation,
    State,
)
from paywitness.core.result import Classification, ResultClass
from paywitness.journal.base import Journal, OperationChange
from tests.journal.samples import (
    LEASE_S,
    HandClock,
    asking,
    doubting,
    owned,
    prepared,
    read,
    resending,
    succeeding,
    summary,
    touching,
    waiting,
)


async def test_a_record_moves_the_version_and_the_times(journal: Journal, clock: HandClock) -> None:
    operation = await owned(journal)
    clock.move(2)
    change = succeeding(operation)
    ended = await journal.record(change)
    assert ended == replace(change.operation, version=2, updated_at=clock.now(), ended_at=clock.now())
    assert await read(journal, operation) == ended


async def test_an_end_is_dated_once(journal: Journal, clock: HandClock) -> None:
    ended = await journal.record(succeeding(await owned(journal)))
    clock.move(5)
    later = await journal.record(touching(ended))
    assert (later.ended_at, later.updated_at) == (ended.ended_at, clock.now())


async def test_a_record_over_an_older_version_is_stale_and_changes_nothing(journal: Journal) -> None:
    operation = await owned(journal)
    doubted = await journal.record(doubting(operation))
    with pytest.raises(StaleWrite):
        await journal.record(succeeding(operation, accepted_credential=True))
    assert await read(journal, operation) == doubted
    assert len(await journal.history(operation.id)) == 2
    assert await journal.sealed(operation.id) == (b"sealed request", None)


async def test_a_record_of_an_operation_that_is_not_there_is_stale(journal: Journal) -> None:
    with pytest.raises(StaleWrite):
        await journal.record(touching(prepared()))


async def test_of_many_records_over_one_version_exactly_one_is_written(journal: Journal) -> None:
    operation = await owned(journal)
    changes = [touching(operation, f"writer {number}") for number in range(50)]
    results = await asyncio.gather(*(journal.record(change) for change in changes), return_exceptions=True)
    assert sum(isinstance(result, Operation) for result in results) == 1
    assert sum(isinstance(result, StaleWrite) for result in results) == 49
    assert len(await journal.history(operation.id)) == 2


async def test_every_field_that_stands_for_something_is_kept(journal: Journal) -> None:
    guard = Guard(GuardKind.INTENT, "guard-value", "order-7")
    operation = await owned(journal, guard=guard, ignore=("client_time", "nonce"), key_names_purchase=True)
    after = replace(
        advance(operation, Event.ANSWER_LOST, 1),
        answered_attempts=frozenset({1}),
        reference="ch_1",
        result_class=ResultClass.UNKNOWN_OUTCOME,
        due_at=1_700_000_500.5,
        because="ask_first",
        incident="doubt_after_failure",
        cancel_sent=True,
        revision="revision-2",
        lease=None,
        cancel_wanted=True,
        no_bytes_after_at=1_700_000_100.5,
        checks_done=3,
        misses=2,
        first_miss_at=1_700_000_200.5,
        undelivered=True,
        takeover="taken",
        fallback_to="op_other",
        action_since_at=1_700_000_300.5,
        action_expired=True,
        check_asked_by="operator",
    )
    kept = await journal.record(OperationChange(after, (Event.ANSWER_LOST,)))
    assert kept == replace(after, version=2, updated_at=kept.updated_at)
    assert await read(journal, operation) == kept


async def test_the_history_tells_every_change_in_order(journal: Journal, clock: HandClock) -> None:
    operation = await owned(journal)
    clock.move(1)
    attempt = summary(ResultClass.NETWORK_READ_TIMEOUT)
    change = doubting(
        operation, attempt=attempt, action="status_inquiry", because="ask_first", delay_s=2.5, note="a note"
    )
    doubted = await journal.record(change)
    clock.move(1)
    await journal.record(replace(succeeding(doubted), source="webhook"))
    first, second, third = await journal.history(operation.id)
    assert first == HistoryEntry(operation.created_at, 1, "caller", (Event.SEND_RECORDED,), State.SENDING, frozenset())
    assert second == HistoryEntry(
        at=operation.created_at + 1,
        version=2,
        source="caller",
        events=(Event.ANSWER_LOST,),
        state=State.UNKNOWN,
        doubt=frozenset({1}),
        attempt=attempt,
        action="status_inquiry",
        because="ask_first",
        delay_s=2.5,
        note="a note",
    )
    assert (third.version, third.source, third.state, third.doubt) == (3, "webhook", State.SUCCEEDED, frozenset())


async def test_the_history_tells_what_was_found_and_by_whom(journal: Journal) -> None:
    doubted = await journal.record(doubting(await owned(journal)))
    finding = Finding(
        "ask[0]", FindingKind.HIT, 200, Classification.of(ResultClass.SUCCEEDED, "answers.charge[0]"), "page 1"
    )
    change = replace(
        succeeding(doubted),
        finding=finding,
        actor="ada",
        announcement=announcement_of(doubted, succeeding(doubted).operation),
    )
    await journal.record(change)
    entry = (await journal.history(doubted.id))[-1]
    assert (entry.finding, entry.actor, entry.announcement) == (finding, "ada", change.announcement)
    assert entry.announcement is not None
    assert entry.announcement.kinds == (AnnouncementKind.RESOLVED, AnnouncementKind.ENDED)


async def test_the_history_of_nothing_is_empty(journal: Journal) -> None:
    assert await journal.history("op_unknown") == ()
    assert await journal.read("op_unknown") is None
    assert await journal.sealed("op_unknown") == (None, None)


class TestSealedThings:
    async def test_a_response_stays_until_another_one_is_kept(self, journal: Journal) -> None:
        operation = await journal.record(doubting(await owned(journal), sealed_response=b"first"))
        operation = await journal.record(touching(operation))
        assert await journal.sealed(operation.id) == (b"sealed request", b"first")
        await journal.record(succeeding(operation, sealed_response=b"second"))
        assert await journal.sealed(operation.id) == (None, b"second")

    async def test_a_request_is_erased_when_it_is_said(self, journal: Journal) -> None:
        operation = await journal.record(doubting(await owned(journal), erase_request=True))
        assert await journal.sealed(operation.id) == (None, None)

    @pytest.mark.parametrize("erase_request", [True, False])
    async def test_a_request_is_erased_at_the_end(self, journal: Journal, erase_request: bool) -> None:
        operation = await journal.record(succeeding(await owned(journal), erase_request=erase_request))
        assert await journal.sealed(operation.id) == (None, b"sealed response")

    async def test_a_request_that_was_never_stored_is_not_there(self, journal: Journal) -> None:
        claim = await journal.claim(asking(sealed_request=None))
        assert claim.operation is not None
        assert await journal.sealed(claim.operation.id) == (None, None)


class TestLeasesInRecords:
    async def test_a_lease_runs_anew_from_now_under_its_token(self, journal: Journal, clock: HandClock) -> None:
        operation = await owned(journal)
        clock.move(10)
        after = await journal.record(waiting(operation, lease_s=12.0))
        assert operation.lease is not None
        assert after.lease == Lease(operation.lease.token, clock.now() + 12.0)
        assert (await read(journal, operation)).lease == after.lease

    async def test_without_a_lease_nobody_holds_it(self, journal: Journal) -> None:
        after = await journal.record(doubting(await owned(journal)))
        assert after.lease is None
        assert (await read(journal, after)).lease is None

    async def test_a_lease_that_is_not_mentioned_stays(self, journal: Journal, clock: HandClock) -> None:
        operation = await owned(journal)
        clock.move(10)
        after = await journal.record(touching(operation))
        assert after.lease == operation.lease

    async def test_a_record_by_somebody_else_does_not_undo_a_renewal(self, journal: Journal, clock: HandClock) -> None:
        """A webhook that read the operation before the renewal and records after it must not shorten the lease."""
        read_by_webhook = await owned(journal)
        assert read_by_webhook.lease is not None
        clock.move(10)
        await journal.renew((read_by_webhook.id,), {read_by_webhook.id: read_by_webhook.lease.token}, LEASE_S)
        after = await journal.record(replace(touching(read_by_webhook), source="webhook"))
        assert after.lease == Lease(read_by_webhook.lease.token, clock.now() + LEASE_S)
        assert (await read(journal, after)).lease == after.lease

    async def test_evidence_of_an_earlier_attempt_does_not_take_the_lease_from_who_sends_a_later_one(
        self, journal: Journal, clock: HandClock
    ) -> None:
        """The first attempt's caller comes back late, while the resolver re-sends, and gives back "its" lease."""
        doubted = await journal.record(doubting(await owned(journal)))
        resent = await journal.record(resending(doubted, "resolver"))
        late = replace(resent, answered_attempts=frozenset({1}), lease=None)
        after = await journal.record(OperationChange(late, (Event.ANSWER_LOST,), note="late"))
        assert after.lease == resent.lease == Lease("resolver", clock.now() + LEASE_S)
        assert (await read(journal, after)).lease == after.lease

    async def test_an_end_needs_no_lease_even_while_an_attempt_is_under_way(self, journal: Journal) -> None:
        operation = await owned(journal)
        told = advance(operation, Event.WEBHOOK_TOLD_SUCCESS)
        after = await journal.record(
            OperationChange(replace(told, lease=None), (Event.WEBHOOK_TOLD_SUCCESS,), source="webhook")
        )
        assert (after.state, after.lease) == (State.SUCCEEDED, None)

    async def test_an_attempt_under_way_must_be_held_by_somebody(self, journal: Journal) -> None:
        """Else no lease would ever expire, and the operation would be lost."""
        doubted = await journal.record(doubting(await owned(journal)))
        with pytest.raises(IllegalTransition, match="nobody holds it"):
            await journal.record(touching(replace(doubted, attempts=2, attempt_under_way=True)))
        assert await read(journal, doubted) == doubted
