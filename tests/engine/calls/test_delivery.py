"""Whether a reply reached its caller: the deadline passes while the journal writes the end of a movement.

The ledger judges: an equal call under a fresh key, in between, must not move the money again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from paywitness.clock import SystemClock
from paywitness.core.call import CallerOptions
from paywitness.core.errors import JournalUnavailable
from paywitness.core.evidence import Response
from paywitness.core.external_evidence import EvidenceSource
from paywitness.core.operation import AttemptSummary, Finding, FindingKind, Operation, State
from paywitness.core.problems import Problem
from paywitness.core.reply import Reply
from paywitness.core.result import Classification, ResultClass
from paywitness.engine.calls.context import RECORD_TIME_MAX_S
from paywitness.engine.durability.journal_writer import _PAUSE_S, _WRITE_TRIES
from paywitness.journal.base import Journal, OperationChange, OperationQuery
from paywitness.journal.sqlite.journal import CALL_TIMEOUT_S
from paywitness.redis.connection import JOURNAL_CALL_TIMEOUT_S
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.test_attacks import ONE_TRY, Scene, gone, scene
from tests.engine.world import World, header, make_world, outcome, until
from tests.journal.memory import MemoryJournal

SOON_S = 0.6  # a deadline that is sooner than the journal's write may end


class HeldWrites:
    """A journal that writes the first end with effect, and gives its reply when it is told to."""

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[Operation] = []
        self.events: list[str] = []
        self._go = asyncio.Event()
        record = type(journal).record

        async def held(journal: Journal, change: OperationChange) -> Operation:
            recorded = await record(journal, change)
            self.events += change.events
            if recorded.state is State.SUCCEEDED and not self.written:
                self.written.append(recorded)
                await self._go.wait()
            return recorded

        monkeypatch.setattr(type(journal), "record", held)

    def go(self) -> None:
        self._go.set()


async def authorise(world: World) -> str:
    body = {"amount": 1000, "currency": "EUR", "capture": False, "metadata": {"order_id": "order-1"}}
    return str(json.loads((await world.post("/v1/charges", body, _headers("authorize"))).body)["id"])


def _headers(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": key}


async def capture(
    world: World, charge: str, key: str, timeout_s: float | None = None, still_there: Callable[[], bool] = lambda: True
) -> Reply:
    options = CallerOptions(timeout_s=timeout_s)
    path, body = f"/v1/charges/{charge}/capture", {"amount": 300, "final": False}
    return await world.post(path, body, _headers(key), options, still_there)


def captures(world: World) -> int:
    return world.effects(key="first") + world.effects(key="second")


async def operation_of(world: World, key: str) -> Operation:
    (found,) = await world.journal.find_operations(OperationQuery(key=key))
    return found


async def in_doubt(play: Scene) -> None:
    for _ in range(500):
        if (await play.newest("first")).state is State.UNKNOWN:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("its attempt has not ended")


async def test_a_deadline_that_passes_while_the_journal_writes_leaves_no_second_capture(
    stored_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end was recorded as delivered when its write began. The caller got 504, and its repeat captured again."""
    charge = await authorise(stored_world)
    writes = HeldWrites(stored_world.journal, monkeypatch)
    first = await capture(stored_world, charge, "first", SOON_S)
    assert (first.status_code, len(writes.written)) == (504, 1)
    second = await capture(stored_world, charge, "second")
    assert (second.status_code, second.problem, second.operation_id) == (409, Problem.GUARDED, first.operation_id)
    writes.go()
    await until(lambda: not len(stored_world.engine.tasks))
    third = await capture(stored_world, charge, "third")  # now it is known that nobody got the reply
    assert (third.status_code, outcome(third), third.operation_id) == (200, "succeeded", first.operation_id)
    assert (captures(stored_world), stored_world.effects(key="third")) == (1, 0)
    assert "answer_heard" not in writes.events


async def test_a_reply_that_comes_just_in_time_lets_the_next_equal_capture_pass(stored_world: World) -> None:
    """Else its next equal capture would be given this reply: one movement too few."""
    charge = await authorise(stored_world)
    first = await capture(stored_world, charge, "first", RECORD_TIME_MAX_S - 1)
    second = await capture(stored_world, charge, "second", RECORD_TIME_MAX_S - 1)
    assert [outcome(reply) for reply in (first, second)] == ["succeeded", "succeeded"]
    assert (first.operation_id != second.operation_id, captures(stored_world)) == (True, 2)
    await until(lambda: not len(stored_world.engine.tasks))
    assert not (await operation_of(stored_world, "second")).undelivered


async def test_a_caller_that_has_left_when_the_end_is_recorded_is_not_recorded_as_reached(stored_world: World) -> None:
    charge = await authorise(stored_world)
    arrived = len(stored_world.arrivals)
    await capture(stored_world, charge, "first", SOON_S, lambda: len(stored_world.arrivals) == arrived)
    await until(lambda: not len(stored_world.engine.tasks))
    assert (await operation_of(stored_world, "first")).undelivered
    second = await capture(stored_world, charge, "second")
    assert (header(second, "Paywitness-Replayed"), captures(stored_world)) == ("true", 1)


async def test_a_call_with_time_left_is_written_once_and_one_without_once_more(
    stored_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge = await authorise(stored_world)
    writes = HeldWrites(stored_world.journal, monkeypatch)
    writes.go()
    await capture(stored_world, charge, "first")
    await until(lambda: not len(stored_world.engine.tasks))
    assert len(writes.events) == 1
    await capture(stored_world, charge, "second", RECORD_TIME_MAX_S - 1)
    await until(lambda: not len(stored_world.engine.tasks))
    assert writes.events[2:] == ["answer_heard"]


async def test_a_duplicate_whose_deadline_passes_while_the_journal_writes_was_not_reached(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(sandbox) as play:
        writes = HeldWrites(play.journal, monkeypatch)
        first = asyncio.ensure_future(gone(play.world, "first", fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        repeat = await play.world.charge("first", order=None, timeout_s=SOON_S)
        assert (repeat.status_code, len(writes.written)) == (504, 1)
        second = await play.world.charge("second", order=None)
        writes.go()
        await first
        assert (second.operation_id, play.world.effects()) == (repeat.operation_id, 1)


async def test_while_a_duplicate_may_still_be_told_no_equal_call_takes_the_reply(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first caller left and its duplicate was short of time, so the end was recorded as undelivered. An equal call
    took the reply in the moment in which the duplicate got it: two were told of one movement."""
    async with scene(sandbox) as play:
        writes = HeldWrites(play.journal, monkeypatch)
        first = asyncio.ensure_future(gone(play.world, "first", fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        duplicate = asyncio.ensure_future(
            play.world.charge("first", order=None, timeout_s=RECORD_TIME_MAX_S - 1, fault="slow(slow_s=0.3)")
        )
        await until(lambda: writes.written)
        second = await play.world.charge("second", order=None)
        writes.go()
        await first
        assert (second.status_code, second.problem) == (409, Problem.GUARDED)
        assert (outcome(await duplicate), play.world.effects()) == ("succeeded", 1)
        await until(lambda: not len(play.world.engine.tasks))
        third = await play.world.charge("third", order=None)
        assert (third.operation_id != second.operation_id, play.world.effects()) == (True, 2)


async def test_a_reply_that_no_duplicate_got_in_time_is_given_to_the_next_equal_call(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(sandbox) as play:
        writes = HeldWrites(play.journal, monkeypatch)
        first = asyncio.ensure_future(gone(play.world, "first", fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        repeats = [play.world.charge("first", order=None, timeout_s=SOON_S) for _ in range(2)]
        told = await asyncio.gather(*repeats)
        assert ({reply.status_code for reply in told}, len(writes.written)) == ({504}, 1)
        writes.go()
        await first
        await until(lambda: not len(play.world.engine.tasks))
        second = await play.world.charge("second", order=None)
        assert (outcome(second), second.operation_id, play.world.effects()) == ("succeeded", told[0].operation_id, 1)


async def test_a_duplicate_that_may_not_see_the_reply_was_not_reached(sandbox: Sandbox) -> None:
    """It waited under another credential, was told 504, and counted as the one who got the reply. The next equal call
    moved the money again."""
    async with scene(sandbox) as play:
        first = asyncio.ensure_future(gone(play.world, "first", fault="slow(slow_s=0.3)"))
        await until(lambda: play.world.arrivals)
        stranger = await play.world.charge(
            "first", order=None, headers={"Authorization": "Bearer somebody else"}, fault="slow(slow_s=0.3)"
        )
        await first
        assert (stranger.status_code, stranger.problem) == (504, Problem.ACCOUNT_UNKNOWN)
        assert (await play.newest("first")).undelivered
        second = await play.world.charge("second", order=None)
        assert (outcome(second), play.world.effects()) == ("succeeded", 1)


async def test_a_duplicate_that_may_not_see_the_reply_takes_nothing_from_the_caller_that_got_it(
    sandbox: Sandbox,
) -> None:
    """Another sidecar found the payment. Its caller got the reply, and a duplicate under another credential a 504. The
    duplicate recorded that nobody had got the reply, and the next equal payment was given it: one movement too few."""
    async with scene(sandbox, ONE_TRY) as play:
        elsewhere = await make_world(sandbox, ONE_TRY, journal=play.journal)
        play.world.parts.external_evidence.waiters.resolver_running = True
        play.halts.at("answer_classified")
        first = asyncio.ensure_future(play.world.charge("first", order=None, fault="drop_after_commit"))
        await until(lambda: play.halts.halted)
        stranger = asyncio.ensure_future(
            play.world.charge("first", order=None, headers={"Authorization": "Bearer somebody else"})
        )
        made = await play.newest("first")
        await until(lambda: play.world.engine.pipeline.duplicates.waiters.is_awaited(made.id))
        play.halts.go()
        await in_doubt(play)
        finding = Finding("ask", FindingKind.HIT, 200, Classification.of(ResultClass.SUCCEEDED, "found"))
        asked = await play.newest("first")
        policy = await play.policy(asked)
        await elsewhere.parts.external_evidence.apply(asked, policy, EvidenceSource.INQUIRY, finding)
        assert (outcome(await first), (await stranger).problem) == ("succeeded", Problem.ACCOUNT_UNKNOWN)
        await until(lambda: not len(play.world.engine.tasks))
        assert not (await play.newest("first")).undelivered
        second = await play.world.charge("second", order=None)
        assert (second.operation_id != asked.id, play.world.effects()) == (True, 2)
        await close(elsewhere)


async def test_a_duplicate_that_gets_the_reply_just_in_time_was_reached(sandbox: Sandbox) -> None:
    async with scene(sandbox) as play:
        first = asyncio.ensure_future(gone(play.world, "first", fault="slow(slow_s=0.2)"))
        await until(lambda: play.world.arrivals)
        repeat = await play.world.charge("first", order=None, timeout_s=RECORD_TIME_MAX_S - 1)
        second = await play.world.charge("second", order=None)
        await first
        assert [reply.status_code for reply in (repeat, second)] == [200, 200]
        assert (second.operation_id != repeat.operation_id, play.world.effects()) == (True, 2)


async def test_a_caller_that_waits_for_evidence_was_not_reached_if_its_deadline_passes_while_that_is_written(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(sandbox, ONE_TRY) as play:
        play.world.parts.external_evidence.waiters.resolver_running = True
        first = asyncio.ensure_future(play.world.charge("first", order=None, fault="drop_after_commit", timeout_s=1.0))
        await until(lambda: play.world.arrivals)
        await in_doubt(play)
        writes = HeldWrites(play.journal, monkeypatch)
        evidence = asyncio.ensure_future(play.told(await play.newest("first"), ResultClass.SUCCEEDED))
        assert ((await first).status_code, len(writes.written)) == (504, 1)
        second = await play.world.charge("second", order=None)
        writes.go()
        await evidence
        assert (second.operation_id, play.world.effects()) == ((await first).operation_id, 1)


async def test_a_caller_that_gets_what_evidence_showed_just_in_time_was_reached(sandbox: Sandbox) -> None:
    async with scene(sandbox, ONE_TRY) as play:
        play.world.parts.external_evidence.waiters.resolver_running = True
        call = play.world.charge("first", order=None, fault="drop_after_commit", timeout_s=RECORD_TIME_MAX_S - 1)
        first = asyncio.ensure_future(call)
        await until(lambda: play.world.arrivals)
        await in_doubt(play)
        await play.told(await play.newest("first"), ResultClass.SUCCEEDED)
        assert outcome(await first) == "succeeded"
        await until(lambda: not len(play.world.engine.tasks))
        assert not (await play.newest("first")).undelivered


async def test_a_reply_whose_taker_left_without_it_is_kept_for_the_taker(stored_world: World) -> None:
    """A third equal call took it, and then the taker returned: two captures were told, and one was made."""
    charge = await authorise(stored_world)
    arrived = len(stored_world.arrivals)
    await capture(stored_world, charge, "first", SOON_S, lambda: len(stored_world.arrivals) == arrived)
    await until(lambda: not len(stored_world.engine.tasks))
    await capture(stored_world, charge, "second", still_there=lambda: False)  # takes the reply, and has left
    third = await capture(stored_world, charge, "third")
    assert (third.status_code, third.problem) == (409, Problem.GUARDED)
    second = await capture(stored_world, charge, "second")
    assert (outcome(second), header(second, "Paywitness-Replayed"), captures(stored_world)) == ("succeeded", "true", 1)
    third = await capture(stored_world, charge, "third")
    assert (outcome(third), third.operation_id != second.operation_id) == ("succeeded", True)
    assert (captures(stored_world), stored_world.effects(key="third")) == (1, 1)


class JournalThatWentBack(MemoryJournal):
    """A journal that may have lost its last writes."""

    back_s: float | None = None

    @property
    def can_roll_back(self) -> bool:
        return True

    def rolled_back_s(self) -> float | None:
        return self.back_s


async def test_a_reply_whose_delivery_the_journal_may_have_forgotten_is_given_to_nobody(sandbox: Sandbox) -> None:
    """The journal forgot that a refund had succeeded and that its caller was told. An inquiry found the refund. An
    equal refund was given the reply, and was never made."""
    journal = JournalThatWentBack(clock=SystemClock())
    world = await make_world(sandbox, ONE_TRY, journal=journal)
    lost = await world.charge("first", order=None, fault="drop_after_commit")
    operation = await operation_of(world, "first")
    assert (outcome(lost), operation.state) == ("unknown", State.UNKNOWN)
    journal.back_s = 1.0
    finding = Finding("ask", FindingKind.HIT, 200, Classification.of(ResultClass.SUCCEEDED, "found"))
    policy = world.engine.book.providers["acme"].policies[0]
    await world.parts.external_evidence.apply(operation, policy, EvidenceSource.INQUIRY, finding)
    ended = await operation_of(world, "first")
    assert (ended.state, ended.undelivered, ended.delivery_unknown) == (State.SUCCEEDED, True, True)
    journal.back_s = None
    equal = await world.charge("second", order=None)
    assert (equal.status_code, equal.problem, world.effects()) == (409, Problem.GUARDED, 1)
    await close(world)


class KeptEvidence:
    """A spool that takes everything."""

    def __init__(self) -> None:
        self.undelivered: list[bool] = []

    async def put(
        self,
        operation: Operation,
        attempt: AttemptSummary,
        response: Response | None,
        *,
        no_bytes_after_at: float | None,
        undelivered: bool,
    ) -> bool:
        self.undelivered.append(undelivered)
        return True


class RefusingJournal(MemoryJournal):
    async def record(self, change: OperationChange) -> Operation:
        raise JournalUnavailable("it takes no record")


@pytest.mark.parametrize(("left_s", "told"), [(10.0, "succeeded"), (0.8, "unknown")])
async def test_what_the_spool_has_as_undelivered_is_told_nobody(sandbox: Sandbox, left_s: float, told: str) -> None:
    """The deadline may pass while the spool writes. A reply that is told, and kept as undelivered, would be given to
    the next equal call instead of a movement."""
    spool = KeptEvidence()
    world = await make_world(sandbox, journal=RefusingJournal(clock=SystemClock()), spool=spool)
    reply = await world.charge(timeout_s=_WRITE_TRIES * _PAUSE_S + left_s)
    await until(lambda: spool.undelivered)
    assert (outcome(reply), spool.undelivered) == (told, [told == "unknown"])
    await close(world)


def test_the_time_that_a_record_may_take_covers_what_the_journals_are_given() -> None:
    assert RECORD_TIME_MAX_S >= CALL_TIMEOUT_S
    assert RECORD_TIME_MAX_S >= _WRITE_TRIES * (JOURNAL_CALL_TIMEOUT_S + _PAUSE_S)
