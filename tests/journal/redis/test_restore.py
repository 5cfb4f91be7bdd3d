"""An operation that the journal has forgotten is put back by whoever knows it: whole, never over a newer version, and
never in the place of another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from paywitness.core.claim import ClaimVerdict
from paywitness.core.errors import JournalUnavailable
from paywitness.core.lifecycle import Event, IncidentKind, advance
from paywitness.core.operation import AnnouncementKind, Operation, State
from paywitness.core.payment import payment_key
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.journal.ledger import payment_from_row
from paywitness.journal.redis.journal import RedisJournal
from tests.journal.redis_rollback import Backup
from tests.journal.redis_server import RedisServer
from tests.journal.samples import (
    LEASE_S,
    TARGET,
    HandClock,
    asking,
    declining,
    doubting,
    intent,
    owned,
    read,
    resending,
    succeeding,
    telling,
    touching,
    waiting,
)
from tests.journal.test_payments import balance, move, moved, paid, shown
from tests.journal.test_payouts import APPROVAL, approve, payout, started, waits_for_approval


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.ask("FLUSHALL")
    return redis_server


@pytest.fixture
async def journal(server: RedisServer, clock: HandClock) -> AsyncIterator[RedisJournal]:
    journal = await RedisJournal.open(server.url, clock=clock)
    yield journal
    await journal.close()


async def test_an_operation_that_is_gone_is_put_back_whole(
    journal: RedisJournal, server: RedisServer, clock: HandClock
) -> None:
    before = Backup(server)
    known = await owned(journal, guard=intent())
    known = await journal.record(telling(known, doubting(known, sealed_response=b"an answer")))
    known = await journal.record(resending(known, "resolver"))
    before.restore()
    assert await journal.find_operations(OperationQuery()) == ()
    clock.move(1)
    stands = await journal.restore(known, b"sealed request", b"an answer", lease_s=LEASE_S)
    assert stands == known.changed(lease=stands.lease)
    assert stands.lease is not None
    assert (stands.lease.token, stands.lease.until_at) == ("resolver", clock.now() + LEASE_S)
    assert await read(journal, known) == stands
    assert await journal.sealed(known.id) == (b"sealed request", b"an answer")
    for listing in (
        OperationQuery(),
        OperationQuery(key=known.client_key),
        OperationQuery(key=known.provider_key),
        OperationQuery(subject="order of intent-1"),
        OperationQuery(guard="intent-1"),
        OperationQuery(states=frozenset({State.UNKNOWN})),
    ):
        assert await journal.find_operations(listing) == (stands,)
    assert [count.count for count in await journal.doubt_counts()] == [1]
    (entry,) = await journal.history(known.id)
    assert (entry.version, entry.source, entry.events) == (known.version, "recovery", ("put_back",))
    assert "rollback" in entry.note
    (told,) = await journal.announcements(0, limit=10)  # its doubt was forgotten with it, and is told again
    assert told.entry.announcement is not None
    assert AnnouncementKind.DOUBT_OPENED in told.entry.announcement.kinds
    # It is the operation of its key and guard again, and its lease is one.
    assert (await journal.claim(asking())).verdict is ClaimVerdict.IN_FLIGHT
    assert (await journal.claim(asking("another", guard=intent()))).verdict is ClaimVerdict.IN_FLIGHT
    assert await journal.renew((known.id,), {known.id: "resolver"}, LEASE_S) == {known.id}
    ended = await journal.record(succeeding(stands))
    assert (ended.version, ended.incident) == (known.version + 1, None)
    clock.move(LEASE_S * 2)
    assert await journal.expire_leases() == ()


async def test_an_older_version_is_brought_up_to_what_is_known(journal: RedisJournal, server: RedisServer) -> None:
    claimed = await owned(journal, guard=TARGET)
    before = Backup(server)
    known = await journal.record(waiting(claimed))
    before.restore()
    assert await journal.restore(known) == known
    assert await read(journal, known) == known
    assert await journal.sealed(known.id) == (b"sealed request", None)
    assert [entry.version for entry in await journal.history(known.id)] == [1, 2]


async def test_nothing_is_written_over_what_is_as_new(journal: RedisJournal, clock: HandClock) -> None:
    claimed = await owned(journal)
    ended = await journal.record(succeeding(claimed))
    clock.move(1)
    for known in (claimed, ended):
        assert await journal.restore(known, b"another request", lease_s=LEASE_S) == ended
    assert len(await journal.history(ended.id)) == 2
    assert await read(journal, ended) == ended


async def test_put_back_twice_it_is_there_once(journal: RedisJournal, server: RedisServer) -> None:
    before = Backup(server)
    known = await owned(journal, guard=intent())
    before.restore()
    first = await journal.restore(known, b"sealed request", lease_s=LEASE_S)
    assert await journal.restore(known, b"sealed request", lease_s=LEASE_S) == first
    assert await journal.find_operations(OperationQuery(guard="intent-1")) == (first,)
    assert server.ask("HGET", "paywitness:{j}:keys", "kkey-1") == f"$29\r\n{known.id}\r\n".encode()


async def test_whoever_knows_a_later_version_can_still_put_that_back(
    journal: RedisJournal, server: RedisServer
) -> None:
    before = Backup(server)
    first = await owned(journal)
    later = await journal.record(succeeding(first))
    before.restore()
    await journal.restore(first, b"sealed request")
    assert (await journal.restore(later, None, b"sealed response")).state is State.SUCCEEDED
    claim = await journal.claim(asking())
    assert (claim.verdict, claim.sealed_response) == (ClaimVerdict.REPLAY, b"sealed response")
    assert await journal.sealed(first.id) == (None, b"sealed response")


async def test_a_key_that_was_claimed_again_stays_the_claimers(journal: RedisJournal, server: RedisServer) -> None:
    before = Backup(server)
    known = await owned(journal)
    before.restore()
    again = await owned(journal)
    stands = await journal.restore(known, b"sealed request", lease_s=LEASE_S)
    assert (stands.incident, stands.id) == (IncidentKind.JOURNAL_ROLLBACK, known.id)
    assert await journal.find_operations(OperationQuery(incidents_only=True)) == (stands,)
    assert again.id in (await journal.history(known.id))[0].note
    claim = await journal.claim(asking())
    assert (claim.verdict, claim.operation) == (ClaimVerdict.IN_FLIGHT, again)
    # What its holder learns is written down, and the incident stays.
    ended = await journal.record(succeeding(stands))
    assert (ended.state, ended.incident) == (State.SUCCEEDED, IncidentKind.JOURNAL_ROLLBACK)
    # When the other ends without effect, the key still starts nothing: this one may have paid.
    await journal.record(declining(again, released=True))
    claim = await journal.claim(asking())
    assert (claim.verdict, claim.operation) == (ClaimVerdict.REPLAY, ended)


async def test_a_later_generation_is_again_the_newest_of_its_key(journal: RedisJournal, server: RedisServer) -> None:
    await journal.record(declining(await owned(journal), released=True))
    before = Backup(server)
    known = await owned(journal)
    assert known.generation == 2
    before.restore()
    stands = await journal.restore(known, b"sealed request", lease_s=LEASE_S)
    assert stands.incident is None
    assert (await journal.claim(asking())).operation == stands


@pytest.mark.parametrize("guard", [intent(), TARGET])
async def test_a_guard_that_another_key_was_given_is_an_incident(
    journal: RedisJournal, server: RedisServer, clock: HandClock, guard: object
) -> None:
    before = Backup(server)
    known = await owned(journal, guard=guard)
    before.restore()
    clock.move(1)
    other = await owned(journal, "key-2", guard=guard)
    stands = await journal.restore(known, b"sealed request", lease_s=LEASE_S)
    assert stands.incident == IncidentKind.JOURNAL_ROLLBACK
    assert other.id in (await journal.history(known.id))[0].note
    assert (await journal.claim(asking())).operation == stands  # of its own key
    assert await read(journal, other) == other


async def test_another_payment_that_was_meant_so_is_none(
    journal: RedisJournal, server: RedisServer, clock: HandClock
) -> None:
    before = Backup(server)
    known = await owned(journal, guard=TARGET)
    before.restore()
    clock.move(1)
    await owned(journal, "key-2", guard=TARGET, distinct="two parcels")
    assert (await journal.restore(known)).incident is None


async def test_one_that_others_send_for_on_the_strength_of_the_older_version_is_an_incident(
    journal: RedisJournal, server: RedisServer, clock: HandClock
) -> None:
    claimed = await owned(journal)
    before = Backup(server)
    known: Operation = claimed
    for _ in range(3):
        known = await journal.record(waiting(known) if known.state is State.SENDING else _sending(known))
    before.restore()
    clock.move(LEASE_S + 1)
    (swept,) = await journal.expire_leases()
    resent = await journal.record(resending(swept, "another"))
    assert resent.version < known.version
    assert (await journal.restore(known)).incident == IncidentKind.JOURNAL_ROLLBACK


async def test_one_that_was_ended_otherwise_meanwhile_is_an_incident(
    journal: RedisJournal, server: RedisServer, clock: HandClock
) -> None:
    """Its callers were told that nothing was sent: the journal knew of no second attempt."""
    waits = await journal.record(waiting(await owned(journal)))
    before = Backup(server)
    sends = await journal.record(_sending(waits))
    known = await journal.record(succeeding(await journal.record(touching(sends))))
    before.restore()
    clock.move(LEASE_S + 1)
    (swept,) = await journal.expire_leases()
    assert (swept.state, swept.version < known.version) == (State.FAILED, True)
    stands = await journal.restore(known)
    assert (stands.state, stands.incident) == (State.SUCCEEDED, IncidentKind.JOURNAL_ROLLBACK)


async def test_a_movement_is_put_back_with_its_payment_whose_numbers_are_then_unknown(
    journal: RedisJournal, server: RedisServer
) -> None:
    sale = await paid(journal)
    before = Backup(server)
    refund = await journal.record(moved(await move(journal, "refund")))
    started = await move(journal, "second", amount=300)
    before.restore()
    assert (await balance(journal, sale.id)).refunded == 0
    for known in (started, refund):
        await journal.restore(known)
        await journal.restore(known)
    after = await balance(journal, sale.id)
    assert (after.captured, after.refunded, after.posted_total(), after.verify_at is not None) == (
        None,
        None,
        500,
        True,
    )
    assert {movement.operation_id for movement in after.reserved()} == {started.id}


async def test_a_payment_that_was_made_anew_under_its_name_is_one_with_what_is_put_back(
    journal: RedisJournal, server: RedisServer
) -> None:
    """A capture comes in the moment between the rollback and the restore."""
    before = Backup(server)
    sale = await paid(journal)
    first = await journal.record(moved(await move(journal, "first")))
    before.restore()
    second = await move(journal, "second", amount=300)
    assert second.payment == second.id
    for known in (first, sale.changed(reference="ch_1")):
        await journal.restore(known)
    after = await balance(journal, second.id)
    assert (after.paid, after.paid_by, after.names) == (True, sale.id, ("ch_1",))
    assert {movement.operation_id for movement in after.movements} == {first.id, second.id}
    [row] = await journal.ledger_rows((payment_key(sale.id),))
    assert row is not None
    assert payment_from_row(row) == after
    # Evidence of one of them does not take the name for another payment's.
    stands = await read(journal, sale)
    shows = replace(succeeding(stands), shown=shown("ch_1", creates=True, captures=True))
    assert (await journal.record(shows)).incident is None


def _sending(operation: Operation) -> OperationChange:
    return OperationChange(advance(operation, Event.SEND_RECORDED), (Event.SEND_RECORDED,), lease_s=LEASE_S)


async def test_an_ended_one_is_put_back_without_its_request(journal: RedisJournal, server: RedisServer) -> None:
    before = Backup(server)
    ended = await journal.record(succeeding(await owned(journal)))
    before.restore()
    await journal.restore(ended, b"sealed request", b"sealed response")
    assert await journal.sealed(ended.id) == (None, b"sealed response")
    known = replace(ended, updated_at=0.0)
    assert replace(await read(journal, ended), updated_at=0.0) == known


async def test_an_approval_that_a_rolled_back_redis_brings_back_is_not_used_twice(
    journal: RedisJournal, server: RedisServer, clock: HandClock
) -> None:
    """The claim that used it up is forgotten, and its payout may have been sent: a person has to approve it again."""
    await waits_for_approval(journal, "key")
    await approve(journal, clock.now())
    before = Backup(server)
    await started(journal, "key", APPROVAL)
    before.take_over()
    clock.move(60.0)
    with suppress(JournalUnavailable):  # the connection is gone
        await journal.claim(payout("another", APPROVAL))
    await waits_for_approval(journal, "a-fresh-key")
