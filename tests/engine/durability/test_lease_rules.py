"""Whose right to send it is, how long, and what a write says whose reply was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paywitness.core.consequences import WriteContext
from paywitness.core.errors import IllegalTransition, JournalUnavailable, StaleWrite
from paywitness.core.operation import Lease, Operation, State
from paywitness.engine.calls.context import background_context
from paywitness.engine.calls.stored_messages import open_request
from paywitness.engine.durability.journal_writer import JournalWriter, change_of
from paywitness.engine.durability.leases import Leases
from paywitness.engine.durability.recovery import Recovery
from paywitness.engine.policy_reload import PolicyReload
from paywitness.journal.base import OperationChange, OperationQuery
from paywitness.journal.transitions import record_write, renewed_lease
from paywitness.policy.watch import BookRejected, BookReloaded
from paywitness_sandbox.server import Sandbox
from tests.core.samples import operation
from tests.engine.conftest import close
from tests.engine.world import World, book_of, header, make_world, waiting_caller

LEASE_S = 30.0


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def boot(self) -> float:
        return self.at


class SlowJournal:
    """Renews whatever it is asked to, and takes five seconds for it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.renewed: list[Sequence[str]] = []
        self.restored: list[Operation] = []

    async def renew(self, ids: Sequence[str], tokens: dict[str, str], lease_s: float) -> Sequence[str]:
        self.renewed.append(ids)
        self.clock.at += 5.0
        return ids

    async def restore(self, known: Operation, *_: object, lease_s: float | None) -> Operation:
        self.restored.append(known)
        return known


@pytest.fixture
def held() -> tuple[Leases, Clock, SlowJournal]:
    clock = Clock()
    journal = SlowJournal(clock)
    leases = Leases(journal, clock, LEASE_S)  # type: ignore[arg-type]
    leases.hold("op_1", "ours", clock.at)
    return leases, clock, journal


def test_a_lease_is_its_holders_alone_and_must_outlast_what_is_written(
    held: tuple[Leases, Clock, SlowJournal],
) -> None:
    leases, _, _ = held
    assert leases.outlasts("op_1", "ours", LEASE_S - 1)
    assert not leases.outlasts("op_1", "ours", LEASE_S)
    assert not leases.outlasts("op_1", "another's", 0.0)


async def test_a_renewed_lease_is_counted_from_before_it_was_asked_for(
    held: tuple[Leases, Clock, SlowJournal],
) -> None:
    leases, clock, _ = held
    await leases.renew()
    assert clock.at == 105.0
    assert [leases.outlasts("op_1", "ours", left) for left in (24.0, 26.0)] == [True, False]


async def test_a_lease_that_has_run_out_here_is_not_asked_for_again(held: tuple[Leases, Clock, SlowJournal]) -> None:
    leases, clock, journal = held
    clock.at += LEASE_S
    await leases.renew()
    assert journal.renewed == []
    assert renewed_lease(Lease("ours", 50.0), "ours", LEASE_S, 51.0) is None


async def test_a_reply_that_may_have_been_given_away_is_put_back_as_one_that_may(
    held: tuple[Leases, Clock, SlowJournal],
) -> None:
    leases, _, journal = held
    for undelivered in (True, False):
        await leases.restore(operation(state=State.SUCCEEDED, undelivered=undelivered))
    assert [one.delivery_unknown for one in journal.restored] == [True, False]


def test_evidence_of_an_earlier_attempt_leaves_the_lease_to_whoever_sends() -> None:
    sending = operation(state=State.UNKNOWN, doubt=frozenset({1, 2}), attempts=2, attempt_under_way=True, lease=None)
    lease = Lease("another's", 500.0)
    assert record_write(OperationChange(sending, ()), lease, 100.0).operation.lease == lease
    with pytest.raises(IllegalTransition):
        record_write(OperationChange(sending, ()), None, 100.0)


# --- writes


async def test_somebody_elses_write_is_not_taken_for_one_whose_reply_was_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.charge()
    (found,) = await world.journal.find_operations(OperationQuery())
    writer, record, outcomes = world.parts.journal_writer, world.journal.record, ["lost", "stale"]

    async def troubled(change: OperationChange) -> Operation:
        match outcomes.pop(0) if outcomes else "":
            case "lost":
                raise JournalUnavailable("no reply")
            case "stale":
                await record(replace(change, because="somebody else", operation=found.changed(because="somebody else")))
                raise StaleWrite("somebody was faster")
        return await record(change)

    def ours(current: Operation) -> OperationChange:
        seen.append(current.because)
        return change_of(current, current.changed(because="ours"), (), WriteContext(world.clock.now()))

    seen: list[str] = []
    monkeypatch.setattr(world.journal, "record", troubled)
    written = await writer.write_with_retry(found, ours)
    assert (seen[1:], written.because) == (["somebody else"], "ours")


async def test_a_write_that_was_taken_before_its_reply_was_lost_is_not_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.charge()
    (found,) = await world.journal.find_operations(OperationQuery())
    writer, record, lost = world.parts.journal_writer, world.journal.record, [True]

    async def troubled(change: OperationChange) -> Operation:
        written = await record(change)
        if lost and lost.pop():
            raise JournalUnavailable("no reply")
        return written

    monkeypatch.setattr(world.journal, "record", troubled)
    note = lambda current: change_of(current, current.changed(because="ours"), (), WriteContext(1.0))  # noqa: E731
    assert (await writer.write_with_retry(found, note)).version == found.version + 1


async def test_an_attempt_that_somebody_else_carries_by_now_is_not_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = operation(state=State.SENDING, attempts=1, attempt_under_way=True, lease=Lease("another's", 500.0))
    policy = world.engine.book.providers["acme"].policies[0]
    context = background_context(sending, policy, None, "ours", world.clock)
    tried: list[Any] = []

    async def take(self: JournalWriter, before: Operation, change_from: Any) -> Operation:
        tried.append(change_from(before))
        return before

    monkeypatch.setattr(JournalWriter, "write_with_retry", take)
    await world.parts.journal_writer.record_abandoned(context, sending)
    assert tried == []
    await world.parts.journal_writer.record_abandoned(context, sending.changed(lease=Lease("ours", 500.0)))
    assert len(tried) == 1


async def test_what_must_not_be_stored_is_not_in_the_journal(world: World) -> None:
    body = {"amount": 100, "currency": "EUR", "source": {"number": "4242424242424242", "cvc": "123"}}
    headers = {"Authorization": "Bearer test", "Idempotency-Key": "card", "Sandbox-Fault": "drop_after_commit*"}
    reply = await world.post("/v1/charges", body, headers, None)
    operation_id = header(reply, "Paywitness-Operation") or ""
    sealed, _ = await world.journal.sealed(operation_id)
    assert sealed is not None
    assert open_request(world.engine.vault, sealed, operation_id).body == b""


async def test_an_equal_repeat_is_compared_as_it_was_when_the_policy_ignored_other_fields(sandbox: Sandbox) -> None:
    world = await make_world(sandbox)
    headers = {"Idempotency-Key": "k", "Authorization": "Bearer test"}
    await world.post("/v1/charges", {"amount": 100, "currency": "EUR", "client_time": 1}, headers)
    world.engine.policies.book = book_of(sandbox.url, ("ignore: [client_time] ", "ignore: [other] "))
    again = await world.post("/v1/charges", {"amount": 100, "currency": "EUR", "client_time": 2}, headers)
    assert (again.status_code, header(again, "Paywitness-Replayed")) == (200, "true")
    await close(world)


async def test_while_the_journal_may_have_forgotten_nobody_is_thought_to_know_who_was_told(world: World) -> None:
    context = waiting_caller(world, operation())
    for lately in (True, False):
        rollback: Any = SimpleNamespace(recently_rolled_back=lambda lately=lately: lately)
        writer = replace(world.parts.journal_writer, rollback=rollback)
        assert writer._claim_request(context, permitted=True).deliveries_known is not lately


async def test_what_a_journal_has_forgotten_is_put_back_with_its_messages(world: World) -> None:
    """Without its request nobody could inquire about it, without its response nobody replay it."""
    given: list[tuple[bytes | None, ...]] = []

    async def restore(known: Operation, *messages: bytes | None) -> Operation:
        given.append(messages)
        return known

    rollback: Any = SimpleNamespace(messages_of=lambda operation_id: (b"request", b"response"))
    leases: Any = SimpleNamespace(restore=restore)
    await replace(world.parts.journal_writer, rollback=rollback, leases=leases)._restore(operation())
    assert given == [(b"request", b"response")]


# --- recovery, and edits of the policies


async def test_only_a_journal_of_one_process_ends_the_leases_of_living_holders() -> None:
    asked: list[bool] = []

    async def expire(*, all_of_earlier_holders: bool, over_at: float) -> tuple[Operation, ...]:
        asked.append(all_of_earlier_holders)
        return ()

    ages: Any = SimpleNamespace(leases_over_at=lambda lease_s: 0.0)
    journal: Any = SimpleNamespace(expire_leases=expire)
    recovery = Recovery(journal, SimpleNamespace(now=lambda: 0.0), None, LEASE_S, ages)  # type: ignore[arg-type]
    for only_holder in (False, True):
        await recovery.at_start(only_holder=only_holder)
    assert asked == [False, True]


class Enough(Exception):
    """The loop has gone round as often as is looked at."""


async def test_after_the_journal_was_away_holders_get_a_leases_time_to_renew() -> None:
    clock = Clock()
    expired: list[float] = []

    async def expire(*, over_at: float) -> tuple[Operation, ...]:
        expired.append(clock.at)
        if len(expired) == 1:
            raise JournalUnavailable("away")
        return ()

    async def sleep(seconds: float) -> None:
        clock.at += seconds
        if clock.at > 200.0:
            raise Enough

    async def wait(_: object, *, did_something: bool) -> None:
        await sleep(5.0)

    ages: Any = SimpleNamespace(leases_over_at=lambda lease_s: 0.0, due_times=SimpleNamespace(leases=None, wait=wait))
    journal: Any = SimpleNamespace(expire_leases=expire, rolled_back_s=lambda: None)
    ticking: Any = SimpleNamespace(boot=clock.boot, sleep=sleep, now=clock.boot)
    recovery = Recovery(journal, ticking, SimpleNamespace(emit=lambda event: None), LEASE_S, ages)  # type: ignore[arg-type]
    with pytest.raises(Enough):
        await recovery.keep_expiring_leases()
    assert expired[:2] == [100.0, 100.0 + LEASE_S]


async def test_an_edit_is_in_force_only_once_the_journal_has_kept_it(
    sandbox: Sandbox, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited, before = book_of(sandbox.url, ("first_byte: 5s", "first_byte: 6s")), world.engine.book
    found: list[Any] = [BookRejected(("line 3: no",)), BookReloaded(edited, ("acme",)), None]
    watch: Any = SimpleNamespace(poll=lambda: found.pop(0))
    reload = PolicyReload(watch, world.engine, world.journal, world.clock, world.engine.telemetry)
    await reload.poll()
    assert (reload.problems, world.engine.book) == (("line 3: no",), before)
    keep = world.journal.keep_revision

    async def fail(*_: object) -> None:
        raise JournalUnavailable("away")

    monkeypatch.setattr(world.journal, "keep_revision", fail)
    await reload.poll()
    assert world.engine.book is before
    monkeypatch.setattr(world.journal, "keep_revision", keep)
    await reload.poll()
    assert world.engine.book.revision == edited.revision
    assert reload.problems == ()
