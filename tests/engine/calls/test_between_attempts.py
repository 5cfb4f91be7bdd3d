"""What must stay as it was from one attempt to the next, and who is told what while an attempt is under way."""

from __future__ import annotations

import asyncio
import json

import pytest

from paywitness.clock import SystemClock
from paywitness.core.evidence import Evidence, NetworkPhase, Response
from paywitness.core.operation import Operation, State
from paywitness.core.policy import ResolutionRules
from paywitness.engine.policy_start import store_revisions
from paywitness.journal.base import OperationQuery
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, book_of, header, make_world, outcome, problem_type, roomy, until
from tests.journal.memory import MemoryJournal

STRANGER = {"Authorization": "Bearer another"}


class Meanwhile:
    """Something that happens once, when a call has come to a point."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.world: World | None = None
        self.seen = 0

    async def hit(self, name: str) -> None:
        if name == self.point and self.world is not None:
            self.seen += 1
            await self.happen(self.world)

    async def happen(self, world: World) -> None:
        raise NotImplementedError


async def only_operation(world: World) -> Operation:
    (operation,) = await world.journal.find_operations(OperationQuery())
    return operation


# --- the next attempt


async def test_the_key_of_a_re_send_is_that_of_the_first_attempt_to_the_letter(world: World) -> None:
    """A provider that tells upper from lower case would charge a second time."""
    reply = await world.charge("Order-MIXED-Case-1", fault="drop_after_commit")
    assert (reply.status_code, header(reply, "Paywitness-Attempts")) == (200, "2")
    assert {arrival.key for arrival in world.arrivals} == {"Order-MIXED-Case-1"}


async def test_keys_that_differ_in_case_alone_are_two_payments(world: World) -> None:
    replies = [await world.charge(key, order=key) for key in ("Key-A", "key-a")]
    assert [header(reply, "Paywitness-Replayed") for reply in replies] == [None, None]
    assert [world.effects(order=key) for key in ("Key-A", "key-a")] == [1, 1]


async def test_the_second_attempt_goes_by_the_policy_of_the_first_whatever_is_loaded_between(sandbox: Sandbox) -> None:
    class Reload(Meanwhile):
        async def happen(self, world: World) -> None:
            book = roomy(book_of("http://127.0.0.1:9"))  # nobody listens there
            await store_revisions(world.journal, book)
            world.engine.policies.book = book

    reload = Reload("answer_recorded")
    world = reload.world = await make_world(sandbox, failpoints=reload)
    reply = await world.charge(fault="drop_after_commit")
    assert reload.seen == 2
    assert (reply.status_code, header(reply, "Paywitness-Attempts"), world.effects(order="order-1")) == (200, "2", 1)
    await close(world)


def let_time_run_out(world: World) -> None:
    """The deadline of every call that waits is now."""
    for context in world.engine.deadlines._waiting.values():
        object.__setattr__(context, "deadline_mono", world.clock.mono())


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_a_retry_is_not_sent_once_its_caller_has_gone_or_its_time_is_up(sandbox: Sandbox, hangs_up: bool) -> None:
    """Its caller may pay elsewhere by then: it was told nothing, or that nothing was sent."""
    there = [True]

    class Wait(Meanwhile):
        async def happen(self, world: World) -> None:
            if hangs_up:
                there[0] = False
            else:
                let_time_run_out(world)

    wait = Wait("answer_recorded")
    world = wait.world = await make_world(sandbox, failpoints=wait)
    await world.charge(fault="rate_limited(retry_after_s=0),-*", still_there=lambda: there[0])
    assert (len(world.arrivals), world.effects(order="order-1")) == (1, 0)
    operation = await only_operation(world)
    assert (operation.state, operation.because) == (State.FAILED, "no_effect_caller_left")
    assert operation.attempts == 1  # nor is it written down as one that may have been sent
    await close(world)


async def test_a_first_attempt_is_not_sent_after_its_callers_time_was_up(sandbox: Sandbox) -> None:
    """The claim took too long. The caller is told that nothing was sent, and pays elsewhere."""

    class TimeIsUp(Meanwhile):
        async def happen(self, world: World) -> None:
            let_time_run_out(world)

    time_is_up = TimeIsUp("sending_recorded")
    world = time_is_up.world = await make_world(sandbox, failpoints=time_is_up)
    reply = await world.charge()
    assert (reply.status_code, outcome(reply)) == (503, "not_sent")
    assert (time_is_up.seen, len(world.arrivals), world.effects(order="order-1")) == (1, 0, 0)
    await close(world)


async def test_a_call_that_has_ended_keeps_no_lease(world: World) -> None:
    await world.charge()
    operation = await only_operation(world)
    assert world.leases.last_written(operation.id) is None
    assert not world.engine.in_flight


# --- whom the response reaches


async def test_a_response_that_is_under_way_reaches_no_other_credential(world: World) -> None:
    """The order of another merchant, with the same key: it must not be shown the payment of the first."""
    first = asyncio.ensure_future(world.charge(fault="slow(slow_s=0.3)"))
    await until(lambda: world.arrivals)
    other = await world.charge(headers=STRANGER)
    assert (other.status_code, problem_type(other)) == (504, "account-unknown")
    mine = await first
    assert mine.status_code == 200
    assert json.loads(mine.body)["id"].encode() not in other.body
    assert (len(world.arrivals), world.effects(order="order-1")) == (1, 1)


async def test_what_another_process_recorded_reaches_no_other_credential(sandbox: Sandbox) -> None:
    journal = MemoryJournal(clock=SystemClock())
    here, there = await make_world(sandbox, journal=journal), await make_world(sandbox, journal=journal)
    first = asyncio.ensure_future(here.charge(fault="slow(slow_s=0.3)"))
    await until(lambda: here.arrivals)
    other = await there.charge(headers=STRANGER)
    assert (other.status_code, problem_type(other)) == (504, "account-unknown")
    mine = await first
    assert json.loads(mine.body)["id"].encode() not in other.body
    await close(here)
    await close(there)


async def test_a_duplicate_of_what_another_process_sends_is_not_told_that_nothing_was_sent(sandbox: Sandbox) -> None:
    journal = MemoryJournal(clock=SystemClock())
    here, there = await make_world(sandbox, journal=journal), await make_world(sandbox, journal=journal)
    first = asyncio.ensure_future(here.charge(fault="slow(slow_s=1)"))
    await until(lambda: here.arrivals)
    reply = await there.charge(timeout_s=0.3)
    assert (reply.status_code, outcome(reply)) == (504, "unknown")
    assert (await first).status_code == 200
    await close(here)
    await close(there)


async def test_a_call_behind_another_credentials_is_not_told_of_its_operation(sandbox: Sandbox) -> None:
    gone = asyncio.Event()

    class NotYetClaimed:
        async def hit(self, name: str) -> None:
            if name == "call_received":
                await gone.wait()

    world = await make_world(sandbox, failpoints=NotYetClaimed())
    first = asyncio.ensure_future(world.charge())
    await until(lambda: world.engine.single_flight._leaders)
    reply = await world.charge(timeout_s=0.2, headers=STRANGER)
    assert (reply.status_code, problem_type(reply)) == (504, "account-unknown")
    gone.set()
    mine = await first
    assert (header(mine, "Paywitness-Operation") or "").encode() not in reply.body
    await close(world)


# --- answers that come after their attempt


def late_answer(amount: int, stamp: str, currency: str = "EUR") -> Evidence:
    charge = {"id": "ch_late", "status": "succeeded", "amount": amount, "currency": currency}
    body = json.dumps({**charge, "metadata": {"paywitness": stamp}}).encode()
    headers = ((b"Content-Type", b"application/json"),)
    return Evidence(NetworkPhase.COMPLETE, 100, None, Response(200, b"OK", headers, body), "late", 1.0)


@pytest.mark.parametrize(
    ("amount", "stamp", "state"),
    [(1099, "", State.SUCCEEDED), (1, "", State.UNKNOWN), (1099, "op_01M7PT7VKCRTVV8YG20FD31NHJ", State.UNKNOWN)],
    ids=["its own", "another amount", "another stamp"],
)
async def test_a_late_answer_counts_only_if_it_fits_what_was_asked_for(
    sandbox: Sandbox, amount: int, stamp: str, state: State
) -> None:
    sandbox.set_contract("none")
    world = await make_world(sandbox, *WITHOUT_KEYS, resolve=ResolutionRules(schedule_s=(3600.0,)))
    lost = await world.charge(fault="close_before_commit")
    operation = await only_operation(world)
    assert (outcome(lost), operation.state) == ("unknown", State.UNKNOWN)
    (policy,) = [each for each in world.engine.book.providers["acme"].policies if each.operation == operation.operation]
    evidence = late_answer(amount, stamp or operation.sent_stamp or "")
    await world.engine.pipeline._record_late_response(operation, policy, evidence)
    assert (await only_operation(world)).state is state
    await close(world)
