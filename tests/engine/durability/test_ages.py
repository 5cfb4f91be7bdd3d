"""Both ages of an operation, with the sandbox's ledger as judge: a clock that jumps makes nothing settled, and a host
that was down re-sends nothing that the provider may have forgotten."""

from __future__ import annotations

import asyncio
import logging
import math
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

import pytest

from paywitness.clock import JournalClock, SteadyWallClock, SystemClock
from paywitness.core.evidence import Response
from paywitness.core.operation import Operation, State
from paywitness.core.policy import ResolutionRules
from paywitness.engine.durability.ages import Ages
from paywitness.engine.durability.recovery import Recovery
from paywitness.journal.base import AGES_KEY
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness.telemetry.emitter import Telemetry
from paywitness.telemetry.logs import LogWriter
from paywitness.telemetry.metrics import Metrics
from paywitness_sandbox.server import Sandbox
from tests.ages import ages_for
from tests.engine.conftest import close
from tests.engine.resolution.test_absence import CHARGE, Scripted, scripted
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, header, make_world, outcome, until
from tests.journal.memory import MemoryJournal
from tests.journal.samples import HandClock
from tests.step_clock import StepClock

HOUR_S = 3_600.0
RESOLVE = ResolutionRules(settle_s=600.0, resend_for_s=30.0, schedule_s=(0.0,) * 40)
REEXECUTED = ("errors_under_key: replayed ", "errors_under_key: reexecuted ")


class MachineClock(SystemClock):
    """A machine whose wall clock may be wrong, at one of its starts."""

    def __init__(self, host: str = "first start", *, ahead_s: float = 0.0, boot: float | None = None) -> None:
        self.host = host
        self.ahead_s = ahead_s
        self._boot_offset_s = 0.0 if boot is None else boot - SystemClock.boot()

    def now(self) -> float:
        return SystemClock.now() + self.ahead_s

    def boot(self) -> float:
        return SystemClock.boot() + self._boot_offset_s


async def look(world: World, times: int = 1) -> None:
    """Take up what is due, and let it come to its end."""
    for _ in range(times):
        await world.parts.ages.count()
        await world.parts.resolver.start_due()
        await until(lambda: not len(world.engine.tasks))


async def operation_of(world: World, operation_id: str | None) -> Operation:
    operation = await world.journal.read(operation_id or "")
    assert operation is not None
    return operation


def posts(world: World) -> int:
    return sum(arrival.method == "POST" for arrival in world.arrivals)


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "not-noticed-yet"])
async def test_m19_a_step_of_the_stores_clock_makes_nothing_absent(sandbox: Sandbox, noticed: bool) -> None:
    """The request is still under way when the store's clock is set ahead by twenty minutes. It is not there yet."""
    sandbox.set_contract("none")
    store_clock = MachineClock()
    world = await make_world(
        sandbox,
        *WITHOUT_KEYS,
        ("lag: 5s ", "lag: 10ms "),
        journal=MemoryJournal(clock=store_clock),
        resolve=RESOLVE,
    )
    lost = await world.charge(fault="reset_before_commit", timeout_s=0.1)
    store_clock.ahead_s = 1200.0
    if noticed:
        await world.parts.ages.count()
    for _ in range(6):
        await world.parts.resolver.start_due()
        await until(lambda: not len(world.engine.tasks))
    found = await operation_of(world, header(lost, "Paywitness-Operation"))
    assert (found.state, found.misses) == (State.UNKNOWN, 0)
    assert outcome(await world.charge(timeout_s=0.2)) == "unknown"
    assert posts(world) == 1
    await close(world)


async def test_a_step_of_the_stores_clock_takes_nobodys_lease(sandbox: Sandbox) -> None:
    store_clock = MachineClock()
    world = await make_world(sandbox, journal=MemoryJournal(clock=store_clock))
    recovery = Recovery(world.journal, world.clock, world.engine.telemetry, 30.0, world.parts.ages)
    call = asyncio.ensure_future(world.charge(fault="late_response"))
    await until(lambda: posts(world) == 1)
    store_clock.ahead_s = 1200.0
    assert await recovery.at_start(only_holder=False) == 0
    await world.parts.ages.count()
    assert await recovery.at_start(only_holder=False) == 0
    assert outcome(await call) == "succeeded"
    assert world.parts.ages.jumps == 1
    await close(world)


async def test_m6_what_is_dated_follows_a_journal_whose_clock_was_set_back() -> None:
    """It goes at half its pace then. A sidecar's idea of its time went on, and whatever was dated was due too late."""
    store_clock = HandClock()
    journal, clock = MemoryJournal(clock=store_clock), StepClock(store_clock, "machine")
    telemetry = Telemetry(Metrics("test", clock.now), LogWriter(logging.getLogger("paywitness.test")))
    journal_clock = JournalClock(clock)
    ages = Ages(journal, clock, journal_clock, telemetry)
    await ages.count()
    store_clock.move(-HOUR_S)
    for _ in range(300):
        store_clock.move(2.0)
        clock.pass_s(2.0)
        await ages.count()
    assert journal_clock.now() == pytest.approx((await journal.read_clock()).at, abs=2.0)


class Machine:
    """One sidecar over one file, on a machine that is started again."""

    def __init__(self, sandbox: Sandbox, path: Path) -> None:
        self.sandbox = sandbox
        self.path = path

    async def start(self, clock: MachineClock) -> World:
        journal = await SqliteJournal.open(self.path, clock=SteadyWallClock(clock), wall_clock=clock)
        world = await make_world(self.sandbox, REEXECUTED, journal=journal, clock=clock, resolve=RESOLVE)
        recovery = Recovery(journal, clock, world.engine.telemetry, 30.0, world.parts.ages)
        await recovery.at_start(only_holder=True)
        return world


async def test_p1_a_after_a_weekend_nothing_is_re_sent(sandbox: Sandbox, tmp_path: Path) -> None:
    """Sent on Friday, its response lost; the host boots on Monday. The provider has forgotten the key since."""
    machine = Machine(sandbox, tmp_path / "journal.db")
    friday = await machine.start(MachineClock(boot=90_000.0))
    assert outcome(await friday.charge(fault="drop_after_commit", timeout_s=0.2)) == "unknown"
    await close(friday)
    monday = await machine.start(MachineClock("second start", ahead_s=62 * HOUR_S, boot=30.0))
    sent = posts(monday)
    monday.parts.ages.note_response("acme", date_of(monday.clock.now()))
    await monday.charge(timeout_s=0.5)
    await look(monday, 2)
    assert posts(monday) == sent
    assert monday.effects(order="order-1") == 1
    await close(monday)


class PassingClock(MachineClock):
    """A machine on which the test lets time pass."""

    def pass_s(self, seconds: float) -> None:
        self.ahead_s += seconds
        self._boot_offset_s += seconds


async def test_p1_b_pods_that_live_shorter_than_settle_find_out_all_the_same(sandbox: Sandbox, tmp_path: Path) -> None:
    """P1 B: no pod sees ten minutes pass, and each is on another machine. Either nobody could believe the store's
    clock, or each start began the wait again. What they saw adds up, and what nobody saw does not."""
    edits = (("lag: 5s ", "lag: 10ms "), NOT_STORED)
    path, passed_s = tmp_path / "journal.db", 0.0

    async def pod(number: int) -> tuple[World, PassingClock]:
        clock = PassingClock(f"machine {number}", ahead_s=passed_s, boot=1000.0 * number)
        journal = await SqliteJournal.open(path, clock=SteadyWallClock(clock), wall_clock=clock)
        world = await make_world(sandbox, *edits, journal=journal, clock=clock, resolve=RESOLVE)
        await Recovery(journal, clock, world.engine.telemetry, 30.0, world.parts.ages).at_start(only_holder=True)
        return world, clock

    world, clock = await pod(1)
    lost = await world.charge(fault="reset_before_commit", timeout_s=0.1)
    seen_s, operation_id = 0.0, header(lost, "Paywitness-Operation")
    for number in range(2, 12):
        for _ in range(5):
            clock.pass_s(20.0)
            await world.parts.ages.count()
        seen_s += 100.0
        await look(world, 4)
        found = await operation_of(world, operation_id)
        if seen_s < RESOLVE.settle_s:
            assert (found.state, found.misses) == (State.UNKNOWN, 0)
        await close(world)
        passed_s = clock.ahead_s + 300.0  # nobody lives for five minutes
        world, clock = await pod(number)
        if found.state is not State.UNKNOWN:
            break
    assert (found.state, found.key_released) == (State.FAILED, True)
    again = await world.charge()
    assert (again.status_code, world.effects(order="order-1")) == (200, 1)
    await close(world)


async def test_n2_while_no_date_tells_how_long_a_clock_stood_nothing_is_re_sent(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The machine's clock stood still while it was off: every clock of ours says minutes."""
    machine = Machine(sandbox, tmp_path / "journal.db")
    friday = await machine.start(MachineClock(boot=90_000.0))
    lost = await friday.charge(fault="drop_after_commit", timeout_s=0.2)
    first = await operation_of(friday, header(lost, "Paywitness-Operation"))
    await close(friday)
    woken = await machine.start(MachineClock("second start", ahead_s=180.0, boot=30.0))
    sent_at = first.first_sent_at or 0.0
    assert woken.parts.ages.high_age_s(sent_at, "acme") == math.inf
    assert woken.parts.ages.awaits_dates
    sent = posts(woken)
    assert outcome(await woken.charge(timeout_s=0.5)) == "unknown"
    assert posts(woken) == sent
    woken.parts.ages.note_response("acme", date_of(woken.clock.now() + 62 * HOUR_S))
    assert woken.parts.ages.high_age_s(sent_at, "acme") >= 62 * HOUR_S
    assert outcome(await woken.charge(timeout_s=0.5)) == "unknown"
    assert posts(woken) == sent
    await close(woken)
    # It is kept: the next start knows how long that was.
    again = await machine.start(MachineClock("second start", ahead_s=190.0, boot=60.0))
    await again.parts.ages.count()
    await close(again)


BOUNDED = (
    '{paywitness: "{operation_id}"}    # by our stamp',
    '{paywitness: "{operation_id}", from: "{since}"}  # by our stamp',
)
NOT_STORED = ("errors_under_key: replayed ", "errors_under_key: not_stored ")


async def test_m23_a_list_reaches_back_over_an_hour_in_which_our_clock_stood(tmp_path: Path) -> None:
    """The machine was off, and so was its clock. By that clock a list that reaches back to our attempt began an hour
    after it, and did not show what was paid."""
    away_s, made_at, asked = 0.0, 0.0, 0

    def now() -> float:
        return SystemClock.now() + away_s

    def answer(method: str, target: str) -> tuple[int, object]:
        nonlocal made_at, asked
        if method == "POST":
            made_at = now()
            return 500, {"error": {"type": "api_error"}}
        asked += 1
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        paid = {**CHARGE, "status": "succeeded", "metadata": {"paywitness": query["paywitness"]}}
        shown = [paid] if made_at >= datetime.fromisoformat(query["from"]).timestamp() else []
        return (503, {"error": "later"}) if asked == 1 else (200, {"data": shown, "has_more": False})

    async def start(provider: Scripted, clock: MachineClock) -> World:
        path = tmp_path / "journal.db"
        journal = await SqliteJournal.open(path, clock=SteadyWallClock(clock), wall_clock=clock)
        edits = (BOUNDED, NOT_STORED)
        return await make_world(cast(Sandbox, provider), *edits, journal=journal, clock=clock, resolve=RESOLVE)

    async with scripted(answer) as provider:
        provider.date_at = now
        before = await start(provider, MachineClock(boot=90_000.0))
        lost = await before.charge(timeout_s=0.2)
        assert outcome(lost) == "unknown"
        await close(before)
        away_s = HOUR_S
        after = await start(provider, MachineClock("second start", boot=30.0))
        await look(after, 3)
        found = await operation_of(after, header(lost, "Paywitness-Operation"))
        assert (found.state, found.misses) == (State.SUCCEEDED, 0)
        await close(after)


async def test_a_restart_on_the_same_machine_re_sends_at_once(sandbox: Sandbox, tmp_path: Path) -> None:
    machine = Machine(sandbox, tmp_path / "journal.db")
    before = await machine.start(MachineClock())
    assert outcome(await before.charge(fault="drop_after_commit", timeout_s=0.2)) == "unknown"
    await close(before)
    after = await machine.start(MachineClock())
    assert not after.parts.ages.awaits_dates
    assert outcome(await after.charge()) == "succeeded"
    assert after.effects(order="order-1") == 1
    await close(after)


def date_of(at: float) -> Response:
    return Response(200, b"OK", ((b"Date", formatdate(at, usegmt=True).encode()),), b"")


async def test_a_cached_response_is_as_old_as_it_says(sandbox: Sandbox) -> None:
    clock = MachineClock()
    ages = ages_for(MemoryJournal(clock=clock), clock)
    await ages.count()
    old = Response(200, b"OK", ((b"date", formatdate(clock.now() - 300, usegmt=True).encode()), (b"age", b"300")), b"")
    ages.note_response("acme", old)
    for wrong in (b"", b"yesterday", "\u1234".encode()):
        ages.note_response("other", Response(200, b"OK", ((b"Date", wrong),), b""))
    await ages.count()
    assert ages._table is not None
    [(provider, offset_s)] = ages._table.date_offsets
    assert (provider, abs(offset_s) < 5.0) == ("acme", True)


async def test_a_journal_that_went_back_is_told_what_is_known_here() -> None:
    """A restored store has an older table. The jump that it lacks is not forgotten."""
    store_clock = HandClock()
    clock = StepClock(store_clock, "a")
    journal = MemoryJournal(clock=store_clock)
    ages = ages_for(journal, clock)
    await ages.count()
    sent_at = store_clock.now()
    before = (await journal.read_clock()).ages
    clock.pass_s(20.0)
    store_clock.move(1220.0)
    await ages.count()
    assert ages.low_age_s(sent_at) <= 20.0
    assert before is not None
    journal._tables.ledger[AGES_KEY] = (before, 0.0)
    clock.pass_s(2.0)
    store_clock.move(2.0)
    await ages.count()
    assert ages.low_age_s(sent_at) <= 22.0
    newcomer = ages_for(journal, StepClock(store_clock, "b"))
    await newcomer.count()
    assert newcomer.low_age_s(sent_at) <= 22.0


async def test_before_the_first_reading_nothing_has_passed_and_nothing_is_young() -> None:
    clock = MachineClock()
    ages = ages_for(MemoryJournal(clock=clock), clock)
    assert ages.low_age_s(0.0) == 0.0
    assert ages.high_age_s(clock.now(), "acme") == math.inf
    assert ages.leases_over_at(30.0) == -math.inf
