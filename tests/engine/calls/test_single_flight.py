"""Whoever asks for what is known, or under way, needs no place at the provider: before the first one's claim, while it
is carried, and when there is no room at all."""

from __future__ import annotations

import asyncio

import pytest

from paywitness.clock import SystemClock
from paywitness.core.claim import Claim, ClaimRequest
from paywitness.core.errors import JournalUnavailable
from paywitness_sandbox.server import Sandbox
from tests.engine.calls.test_admission import FEW, SLOW, crowd, few_places, start
from tests.engine.limits_world import ONE_TRY, ROOM, limited_by, limited_world, posts, together
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, outcome, problem_type, until
from tests.journal.memory import MemoryJournal

HANGS = "hang_before_commit(hang_s=60)*"


class DistantJournal(MemoryJournal):
    """A claim takes its time, as over a network; each is known by its key. The first may fail."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.claims: list[tuple[str, bool]] = []
        self.fails = 0

    async def claim(self, request: ClaimRequest) -> Claim:
        self.claims.append((request.fresh.client_key, request.permitted))
        await asyncio.sleep(0.02)
        if self.fails:
            self.fails -= 1
            raise JournalUnavailable("down")
        return await super().claim(request)


async def fill(world: World, fault: str = SLOW) -> list[asyncio.Future]:
    full = [start(world, f"full-{n}", fault=fault) for n in range(FEW)]
    await until(lambda: crowd(world) == (FEW, 0) and {f"full-{n}" for n in range(FEW)} <= set(posts(world)))
    return full


async def test_many_callers_of_many_keys_are_refused_no_more_than_one_caller_of_each(sandbox: Sandbox) -> None:
    journal = DistantJournal()
    async with limited_world(sandbox, *ONE_TRY, limits=few_places, journal=journal) as world:
        names = [f"k-{n}" for n in range(FEW + 2 * FEW)]  # as many as have a place, and as may wait for one
        replies = await together(*(start(world, name) for name in names for _ in range(20)))
        assert {reply.status_code for reply in replies} == {200}
        assert sorted(filter(None, posts(world))) == sorted(names)
        started = [key for key, permitted in journal.claims if permitted]
        assert sorted(started) == sorted(names)
        assert len(journal.claims) <= 20 * len(names) + 2 * FEW  # one each, and one more for who had to wait


async def test_what_is_known_is_told_at_once_where_there_is_no_room(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        paid = await world.charge("paid", order="paid")
        full = await fill(world, HANGS)
        new = start(world, "new")
        await until(lambda: crowd(world) == (FEW, 1))
        again = await world.charge("paid", order="paid")
        assert (again.status_code, again.body, again.replayed) == (200, paid.body, True)
        assert not new.done()  # which came first, and waits
        assert limited_by(await new) == "provider_busy"
        assert problem_type(await start(world, "full-0", timeout_s=0.1)) == "unknown"
        assert not any(call.done() for call in full)
        for call in full:
            call.cancel()


@pytest.mark.parametrize("sent_again", [False, True], ids=["it can only be asked about", "it may be sent again"])
async def test_a_repeat_of_a_doubt_takes_a_place_only_to_send_it_again(sandbox: Sandbox, sent_again: bool) -> None:
    edits = () if sent_again else WITHOUT_KEYS
    async with limited_world(sandbox, *ONE_TRY, *ROOM, *edits, limits=few_places) as world:
        assert problem_type(await world.charge("lost", order="lost", fault="drop_after_commit")) == "unknown"
        full = await fill(world)
        reply = await world.charge("lost", order="lost")
        if sent_again:  # a place was free in the end, and the provider knew the key
            assert (reply.status_code, outcome(reply)) == (200, "succeeded")
        else:
            assert (problem_type(reply), crowd(world)) == ("unknown", (FEW, 0))
            assert not any(call.done() for call in full)
        await together(*full)
        assert posts(world).count("lost") == (2 if sent_again else 1)
        assert world.effects(order="lost") == 1


async def test_one_behind_another_that_is_refused_waits_for_a_place_of_its_own(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        full = await fill(world)
        hurried = start(world, "twice", timeout_s=0.4)  # waits a quarter of that
        await until(lambda: crowd(world) == (FEW, 1))
        patient = start(world, "twice")
        refused = await hurried
        assert (refused.status_code, limited_by(refused)) == (503, "provider_busy")
        assert (await patient).status_code == 200
        await together(*full)
        assert world.effects(order="twice") == 1


async def test_those_behind_one_whose_claim_failed_are_served_by_the_next(sandbox: Sandbox) -> None:
    journal = DistantJournal()
    journal.fails = 2  # a claim, and the same one asked again
    async with limited_world(sandbox, *ONE_TRY, limits=few_places, journal=journal) as world:
        replies = await together(*(start(world, "twice") for _ in range(10)))
        assert [problem_type(replies[0]), *(reply.status_code for reply in replies[1:])] == [
            "journal-unavailable",
            *[200] * 9,
        ]
        assert world.effects(order="twice") == 1


async def test_one_whose_time_is_up_behind_another_is_not_told_that_nothing_will_be_sent(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, limits=few_places) as world:
        full = await fill(world)
        first = start(world, "twice")
        await until(lambda: crowd(world) == (FEW, 1))
        hurried = await start(world, "twice", timeout_s=0.05)
        assert (problem_type(hurried), outcome(hurried)) == ("in-flight", "in_flight")  # it may be sent yet
        assert not first.done()
        assert (await first).status_code == 200
        await together(*full)
        assert world.effects(order="twice") == 1


async def test_one_whose_time_is_up_behind_another_is_told_of_the_doubt_there_is(sandbox: Sandbox) -> None:
    async with limited_world(sandbox, *ONE_TRY, *ROOM, limits=few_places) as world:
        assert problem_type(await world.charge("lost", order="lost", fault="drop_after_commit")) == "unknown"
        full = await fill(world)
        again = start(world, "lost")
        await until(lambda: crowd(world) == (FEW, 1))
        hurried = await start(world, "lost", timeout_s=0.05)
        assert (problem_type(hurried), outcome(hurried)) == ("unknown", "unknown")
        assert (await again).status_code == 200
        await together(*full)
        assert world.effects(order="lost") == 1
