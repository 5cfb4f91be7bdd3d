"""What a person does: only where the lifecycle allows it, over exactly what was seen, with name and reason."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paywitness.clock import SystemClock
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.lifecycle import Event, IncidentKind
from paywitness.core.operation import AnnouncementKind, Finding, FindingKind, HistoryEntry, Lease, Operation, State
from paywitness.core.operator_actions import OperatorAction, actions_for
from paywitness.core.result import Classification, Effect, ResultClass
from paywitness.engine.operator_commands import (
    ActionNotAllowed,
    InvalidCommand,
    NoSuchOperation,
    OperatorCommand,
    VersionConflict,
    describe_conflict,
)
from paywitness.journal.base import OperationQuery
from paywitness.journal.sqlite.journal import SqliteJournal
from tests.admin.world import CARD, World
from tests.journal.memory import MemoryJournal

EVIDENCE = "Acme's dashboard shows ch_9 captured"


def order(act: OperatorAction, **changes: Any) -> OperatorCommand:
    facts: dict[str, Any] = {"actor": "ada", "reason": "ticket 4711", **changes}
    return OperatorCommand(act, **facts)


def resolving(*, succeeded: bool = True, **changes: Any) -> OperatorCommand:
    return order(OperatorAction.RESOLVE, succeeded=succeeded, evidence=changes.pop("evidence", EVIDENCE), **changes)


async def last_entry(world: World, operation: Operation) -> HistoryEntry:
    return (await world.journal.history(operation.id))[-1]


async def stands(world: World, operation: Operation) -> Operation:
    found = await world.journal.read(operation.id)
    assert found is not None
    return found


@pytest.fixture
def world() -> World:
    return World()


# --- each action


async def test_inquire_makes_it_due_and_changes_nothing_else(world: World) -> None:
    before = await world.in_doubt()
    after = await world.review.execute(before.id, order(OperatorAction.INQUIRE))
    assert after.due_at == world.clock.at
    told = replace(after, due_at=None, check_asked_by="", version=before.version, updated_at=before.updated_at)
    assert (told, after.check_asked_by) == (before, "operator")
    entry = await last_entry(world, after)
    assert (entry.source, entry.actor, entry.note, entry.events) == ("operator", "ada", "ticket 4711", ())
    assert (entry.action, entry.because, entry.announcement) == ("inquire", "operator_inquire", None)


async def test_park_puts_it_in_front_of_a_person(world: World) -> None:
    before = await world.in_doubt(due_at=None)
    after = await world.review.execute(before.id, order(OperatorAction.PARK))
    assert (after.state, after.due_at, after.doubt) == (State.REQUIRES_REVIEW, None, before.doubt)
    entry = await last_entry(world, after)
    assert (entry.events, entry.actor) == (("operator_parked",), "ada")
    assert entry.announcement is not None
    assert entry.announcement.kinds == (AnnouncementKind.REVIEW_OPENED,)


async def test_resume_takes_it_out_again_from_the_start_of_the_schedule(world: World) -> None:
    parked = await world.in_review()
    after = await world.review.execute(parked.id, order(OperatorAction.RESUME))
    assert (after.state, after.due_at, after.checks_done, after.misses) == (State.UNKNOWN, world.clock.at, 0, 0)
    assert after.doubt == parked.doubt


async def test_what_was_parked_as_pending_is_pending_again(world: World) -> None:
    parked = await world.review.execute((await world.pending()).id, order(OperatorAction.PARK))
    assert parked.state is State.REQUIRES_REVIEW
    after = await world.review.execute(parked.id, order(OperatorAction.RESUME))
    assert (after.state, after.doubt) == (State.PENDING, frozenset())


@pytest.mark.parametrize(
    ("succeeded", "state", "reading"),
    [(True, State.SUCCEEDED, ResultClass.SUCCEEDED), (False, State.FAILED, ResultClass.FAILED)],
)
@pytest.mark.parametrize("made", ["in_doubt", "in_review", "pending", "abandoned"])
async def test_resolve_ends_it_with_the_evidence(
    world: World, made: str, succeeded: bool, state: State, reading: ResultClass
) -> None:
    before = await getattr(world, made)()
    after = await world.review.execute(
        before.id, resolving(succeeded=succeeded, reference="ch_9" if succeeded else None)
    )
    assert (after.state, after.result_class, after.doubt, after.due_at) == (state, reading, frozenset(), None)
    assert after.reference == ("ch_9" if succeeded else None)
    assert after.incident is None
    entry = await last_entry(world, after)
    assert (entry.source, entry.actor, entry.note) == ("operator", "ada", "ticket 4711")
    assert entry.finding is not None
    assert (entry.finding.source, entry.finding.kind, entry.finding.detail) == ("operator", FindingKind.HIT, EVIDENCE)
    assert entry.announcement is not None
    assert AnnouncementKind.ENDED in entry.announcement.kinds


async def test_a_failure_that_a_person_found_does_not_free_the_key(world: World) -> None:
    after = await world.review.execute((await world.in_doubt()).id, resolving(succeeded=False))
    assert after.key_released is False


async def test_cancel_asks_the_resolver_to_cancel(world: World) -> None:
    before = await world.in_review()
    after = await world.review.execute(before.id, order(OperatorAction.CANCEL))
    assert (after.cancel_wanted, after.due_at, after.state) == (True, world.clock.at, State.REQUIRES_REVIEW)
    with pytest.raises(ActionNotAllowed, match="on its way"):
        await world.review.execute(before.id, order(OperatorAction.CANCEL))


async def test_close_incident_clears_the_incident_and_nothing_else(world: World) -> None:
    before = await world.with_incident()
    after = await world.review.execute(
        before.id, order(OperatorAction.CLOSE_INCIDENT, reason="voided by hand, ticket 4711", succeeded=False)
    )
    changed = {"incident": before.incident, "version": before.version, "updated_at": before.updated_at}
    assert after.incident is None
    assert replace(after, **changed) == before  # type: ignore[arg-type]
    entry = await last_entry(world, after)
    assert entry.announcement is not None
    assert (entry.announcement.kinds, entry.actor) == ((AnnouncementKind.INCIDENT_CLOSED,), "ada")


async def test_an_incident_that_is_closed_as_paid_leaves_the_operation_paid(world: World) -> None:
    before = await world.with_incident()
    after = await world.review.execute(before.id, order(OperatorAction.CLOSE_INCIDENT, succeeded=True))
    assert (after.state, after.incident, after.key_released) == (State.SUCCEEDED, None, False)
    assert (after.result_class, after.effect) == (ResultClass.SUCCEEDED, Effect.DONE)
    entry = await last_entry(world, after)
    assert (entry.events, entry.actor) == (("incident_closed_as_paid",), "ada")
    _, response = await world.journal.sealed(after.id)
    assert not response  # the decline that was kept is not its answer


async def test_an_incident_about_the_end_is_not_closed_without_saying_how_it_ended(world: World) -> None:
    before = await world.with_incident()
    with pytest.raises(ActionNotAllowed, match="say how it ended"):
        await world.review.execute(before.id, order(OperatorAction.CLOSE_INCIDENT))
    listing = OperationQuery(incidents_only=True)
    many = await world.review.execute_many(listing, order(OperatorAction.CLOSE_INCIDENT), dry_run=False, limit=10)
    assert (many.done, [refusal.operation_id for refusal in many.refused]) == (0, [before.id])
    assert await stands(world, before) == before


async def test_an_incident_of_what_was_paid_for_certain_is_closed_as_it_stands(world: World) -> None:
    paid = await world.succeeded()
    before = await world.changed(paid, Event.WEBHOOK_TOLD_SUCCESS, incident=IncidentKind.ANOTHER_AMOUNT)
    after = await world.review.execute(before.id, order(OperatorAction.CLOSE_INCIDENT))
    assert (after.state, after.incident, after.result_class) == (State.SUCCEEDED, None, before.result_class)


async def test_a_payment_that_is_not_there_is_closed_as_taken_back(world: World) -> None:
    before = await world.changed(await world.succeeded(), Event.WEBHOOK_TOLD_DENIAL)
    assert before.incident == IncidentKind.FAILURE_AFTER_SUCCESS
    with pytest.raises(ActionNotAllowed, match="say how it ended"):
        await world.review.execute(before.id, order(OperatorAction.CLOSE_INCIDENT))
    after = await world.review.execute(before.id, order(OperatorAction.CLOSE_INCIDENT, succeeded=False))
    assert (after.state, after.incident, after.result_class) == (State.SUCCEEDED, None, ResultClass.RETURNED)


# --- what is refused


@pytest.mark.parametrize("made", ["started", "succeeded", "declined", "in_doubt", "in_review", "pending", "abandoned"])
@pytest.mark.parametrize("act", list(OperatorAction))
async def test_what_is_not_offered_is_refused_and_writes_nothing(world: World, made: str, act: OperatorAction) -> None:
    before = await getattr(world, made)()
    wanted = resolving() if act is OperatorAction.RESOLVE else order(act)
    policy = await world.review.policy_of(before)
    assert policy is not None
    if act in actions_for(before, policy):
        await world.review.execute(before.id, wanted)
        assert (await stands(world, before)).version == before.version + 1
        return
    with pytest.raises(ActionNotAllowed) as refused:
        await world.review.execute(before.id, wanted)
    assert act not in refused.value.allowed_actions
    assert refused.value.why
    assert await stands(world, before) == before


async def test_an_attempt_under_way_is_never_resolved_away(world: World) -> None:
    doubtful = await world.in_doubt()
    lease = Lease("token", world.clock.at + 30)
    resent = await world.changed(doubtful, Event.RESEND_RECORDED, lease=lease)
    assert resent.attempt_under_way
    for succeeded in (True, False):
        with pytest.raises(ActionNotAllowed, match="under way"):
            await world.review.execute(resent.id, resolving(succeeded=succeeded))
    parked = await world.review.execute(resent.id, order(OperatorAction.PARK))
    assert (parked.attempt_under_way, parked.lease) == (True, lease)  # its answer will still be heard


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (order(OperatorAction.PARK, actor=" "), "Say who does it"),
        (order(OperatorAction.PARK, actor="x" * 101), "Say who does it"),
        (order(OperatorAction.PARK, reason=""), "Say why"),
        (order(OperatorAction.PARK, reason="ok"), "Say why"),
        (order(OperatorAction.PARK, reason="x" * 1001), "Say why"),
        (order(OperatorAction.PARK, reason="bell \x07 rung"), "cannot be printed"),
        (order(OperatorAction.PARK, evidence=EVIDENCE), "belong to resolve"),
        (order(OperatorAction.CLOSE_INCIDENT, evidence=EVIDENCE), "belong to resolve"),
        (order(OperatorAction.PARK, succeeded=True), "belong to resolve"),
        (order(OperatorAction.RESOLVE, evidence=EVIDENCE), "as is succeeded or failed"),
        (resolving(evidence=""), "Only evidence ends a doubt"),
        (resolving(evidence="  checked  "), "Only evidence ends a doubt"),
        (resolving(reference=" ch_1"), "reference has"),
        (resolving(reference=""), "reference has"),
    ],
)
async def test_an_order_that_lacks_something_is_refused(world: World, wanted: OperatorCommand, says: str) -> None:
    before = await world.in_doubt()
    with pytest.raises(InvalidCommand, match=says):
        await world.review.execute(before.id, wanted)
    assert await stands(world, before) == before


async def test_a_card_number_that_somebody_pastes_is_not_kept(world: World) -> None:
    before = await world.in_doubt()
    after = await world.review.execute(
        before.id, resolving(evidence=f"customer read out {CARD}", reason=f"card {CARD}")
    )
    entry = await last_entry(world, after)
    assert entry.finding is not None
    assert CARD not in entry.note + entry.finding.detail
    assert "***" in entry.finding.detail


async def test_what_the_journal_does_not_hold_is_said_so(world: World) -> None:
    with pytest.raises(NoSuchOperation):
        await world.review.execute("op_404", order(OperatorAction.PARK))


async def test_an_operation_whose_policy_is_gone_can_still_be_parked_and_closed(world: World) -> None:
    doubtful, disputed = await world.in_doubt(provider="gone"), await world.with_incident(provider="gone")
    with pytest.raises(ActionNotAllowed, match="no policy of gone can be read"):
        await world.review.execute(doubtful.id, resolving())
    assert (await world.review.execute(doubtful.id, order(OperatorAction.PARK))).state is State.REQUIRES_REVIEW
    closing = order(OperatorAction.CLOSE_INCIDENT, succeeded=False)
    assert (await world.review.execute(disputed.id, closing)).incident is None


# --- somebody is faster


class Meeting(MemoryJournal):
    """Two who read the same operation go on together: both have seen the same version."""

    barrier: asyncio.Barrier | None = None

    async def read(self, operation_id: str) -> Operation | None:
        found = await super().read(operation_id)
        barrier, reads = self.barrier, 2
        if barrier is not None:
            if await barrier.wait() == reads - 1:
                self.barrier = None
            await asyncio.sleep(0)
        return found


async def test_of_two_operators_at_once_exactly_one_wins_and_the_other_is_told() -> None:
    world = World(journal_kind=Meeting)
    before = await world.in_review()
    assert isinstance(world.memory, Meeting)
    world.memory.barrier = asyncio.Barrier(2)
    ends = await asyncio.gather(
        world.review.execute(before.id, resolving(succeeded=True, reference="ch_9")),
        world.review.execute(before.id, resolving(succeeded=False, actor="bob", reason="ticket 4712")),
        return_exceptions=True,
    )
    [winner] = [end for end in ends if isinstance(end, Operation)]
    [loser] = [end for end in ends if isinstance(end, VersionConflict)]
    after = await stands(world, before)
    assert (after.state, after.version, after.incident) == (winner.state, before.version + 1, None)
    assert loser.operation == after
    who = "ada" if after.state is State.SUCCEEDED else "bob"
    assert describe_conflict(loser).startswith(
        f"it is now {after.state} (version {after.version}), by {who} (operator)"
    )
    assert len([each for each in await world.journal.history(before.id) if each.actor]) == 1


async def test_of_twenty_operators_on_a_journal_of_its_own_exactly_one_wins(tmp_path: Path) -> None:
    world = World(store=await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock()))
    before = await world.in_review()
    wanted = [resolving(succeeded=number % 2 == 0, actor=f"operator-{number}") for number in range(20)]
    ends = await asyncio.gather(*(world.review.execute(before.id, each) for each in wanted), return_exceptions=True)
    assert sum(isinstance(end, Operation) for end in ends) == 1
    assert sum(isinstance(end, VersionConflict | ActionNotAllowed) for end in ends) == 19
    after = await stands(world, before)
    assert (after.version, after.incident) == (before.version + 1, None)
    [won] = [each for each in await world.journal.history(before.id) if each.actor]
    succeeded = int(won.actor.removeprefix("operator-")) % 2 == 0
    assert after.state is (State.SUCCEEDED if succeeded else State.FAILED)
    for end in ends:
        if isinstance(end, VersionConflict):
            assert f"by {won.actor} (operator)" in describe_conflict(end)
    await world.journal.close()


async def test_an_operator_who_saw_an_older_version_is_told_what_is_true_now(world: World) -> None:
    seen = await world.in_doubt()
    await world.review.execute(seen.id, order(OperatorAction.PARK, actor="bob", reason="Acme is down"))
    with pytest.raises(VersionConflict) as refused:
        await world.review.execute(seen.id, resolving(succeeded=False), version=seen.version)
    told = describe_conflict(refused.value)
    assert told == "it is now requires review (version 3), by bob (operator): operator parked, saying: Acme is down"
    assert (await stands(world, seen)).state is State.REQUIRES_REVIEW


async def webhook(world: World, operation: Operation, reading: ResultClass) -> None:
    policy = await world.review.policy_of(operation)
    assert policy is not None
    shown = replace(Classification.of(reading, "row"), reference="ch_7")
    finding = Finding("webhook evt_1", FindingKind.HIT, 200, shown)
    await world.review.external_evidence.apply(operation, policy, EvidenceSource.WEBHOOK, finding)


@pytest.mark.parametrize("webhook_first", [True, False])
async def test_an_operator_and_a_webhook_at_once_never_pass_each_other_unseen(webhook_first: bool) -> None:
    world = World(journal_kind=Meeting)
    before = await world.in_review()
    assert isinstance(world.memory, Meeting)
    world.memory.barrier = asyncio.Barrier(2)

    async def tell() -> None:
        operation = await world.journal.read(before.id)
        assert operation is not None
        await webhook(world, operation, ResultClass.SUCCEEDED)

    def act() -> Any:
        return world.review.execute(before.id, resolving(succeeded=False))

    racers = (tell(), act()) if webhook_first else (act(), tell())
    ends = await asyncio.gather(*racers, return_exceptions=True)
    [operators] = [end for end in ends if end is not None]
    after = await stands(world, before)
    if isinstance(operators, VersionConflict):
        assert (after.state, after.reference, after.incident) == (State.SUCCEEDED, "ch_7", None)
        assert "by the webhook: webhook told success" in describe_conflict(operators)
    else:
        assert isinstance(operators, Operation)
        assert (operators.state, operators.incident) == (State.FAILED, None)
        assert (after.state, after.incident) == (State.FAILED, "success_after_failure")


async def test_a_webhook_that_contradicts_the_operator_later_is_an_incident(world: World) -> None:
    before = await world.in_review()
    resolved = await world.review.execute(before.id, resolving(succeeded=False))
    await webhook(world, resolved, ResultClass.SUCCEEDED)
    after = await stands(world, before)
    assert (after.state, after.incident) == (State.FAILED, "success_after_failure")


async def test_the_step_is_not_taken_again_from_what_somebody_else_wrote(world: World) -> None:
    """An order to fail it, decided anew over a success, would be an incident of our own making."""
    seen = await world.in_doubt()
    read = world.memory.read

    async def read_and_be_overtaken(operation_id: str) -> Operation | None:
        found = await read(operation_id)
        if found is not None and found.version == seen.version:
            await webhook(world, found, ResultClass.SUCCEEDED)
        return found

    world.memory.read = read_and_be_overtaken  # type: ignore[method-assign]
    with pytest.raises(VersionConflict):
        await world.review.execute(seen.id, resolving(succeeded=False))
    after = await read(seen.id)
    assert after is not None
    assert (after.state, after.incident) == (State.SUCCEEDED, None)


# --- many at once


async def test_a_dry_run_counts_and_changes_nothing(world: World) -> None:
    doubtful = [await world.in_doubt(client_key=f"key-{number}") for number in range(3)]
    parked = await world.in_review()
    found = await world.review.execute_many(
        OperationQuery(provider="acme"), order(OperatorAction.PARK), dry_run=True, limit=10
    )
    assert {operation.id for operation in found.operations} == {operation.id for operation in doubtful}
    assert {currency: str(money.major) for currency, money in found.money.items()} == {"EUR": "37.50"}
    assert [(refusal.operation_id, refusal.why) for refusal in found.refused] == [
        (parked.id, "it is in review already")
    ]
    assert (found.done, found.has_more) == (0, False)
    for operation in doubtful:
        assert await stands(world, operation) == operation


async def test_only_what_the_operator_saw_is_acted_on(world: World) -> None:
    seen = [await world.in_doubt(client_key=f"seen-{number}") for number in range(2)]
    ended = await world.in_doubt(client_key="ended")
    unseen = await world.in_doubt(client_key="unseen")
    await webhook(world, ended, ResultClass.SUCCEEDED)
    listing = OperationQuery(states=frozenset({State.UNKNOWN}))
    only = [operation.id for operation in (*seen, ended)]
    found = await world.review.execute_many(listing, order(OperatorAction.PARK), dry_run=False, limit=10, only_ids=only)
    assert (found.done, [refusal.operation_id for refusal in found.refused]) == (2, [ended.id])
    assert (await stands(world, unseen)).state is State.UNKNOWN
    assert {(await stands(world, operation)).state for operation in seen} == {State.REQUIRES_REVIEW}


async def test_a_limit_bounds_what_is_done_and_says_that_there_is_more(world: World) -> None:
    for number in range(5):
        await world.in_doubt(client_key=f"key-{number}")
    found = await world.review.execute_many(OperationQuery(), order(OperatorAction.PARK), dry_run=False, limit=3)
    assert (found.done, found.has_more) == (3, True)
    again = await world.review.execute_many(
        OperationQuery(states=frozenset({State.UNKNOWN})), order(OperatorAction.PARK), dry_run=False, limit=3
    )
    assert (again.done, again.has_more) == (2, False)


async def test_more_than_a_page_is_found(world: World) -> None:
    for number in range(250):
        await world.in_doubt(client_key=f"key-{number}")
    found = await world.review.execute_many(OperationQuery(), order(OperatorAction.PARK), dry_run=False, limit=500)
    assert (found.done, len(found.operations), found.has_more) == (250, 250, False)


async def test_many_are_not_resolved_without_evidence_either(world: World) -> None:
    await world.in_doubt()
    with pytest.raises(InvalidCommand):
        await world.review.execute_many(OperationQuery(), resolving(evidence=""), dry_run=False, limit=10)
