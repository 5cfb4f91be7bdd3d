"""The fleet's circuits on a real Redis: quorum, probes, the same machine as the core's, and a store that goes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis import Redis

from paywitness.clock import SystemClock
from paywitness.core import circuit as machine
from paywitness.core import holds
from paywitness.core.circuit import (
    CallGroup,
    CircuitDecision,
    CircuitRefusal,
    CircuitRules,
    CircuitState,
    ForcedState,
    SharedCircuit,
    SidecarReport,
)
from paywitness.core.errors import StoreUnavailable
from paywitness.core.provider_health import HealthCounts
from paywitness.limits.circuits import CircuitCommand
from paywitness.limits.redis_circuits import CIRCUIT, CircuitReply, RedisCircuits, keys_of, report_arguments
from paywitness.limits.redis_scripts import RedisScriptRunner
from paywitness.redis.url import parse_limits_url
from tests.limits.circuits_world import BAD, RULES, WELL, MovedClock, MovedScriptRunner, Sidecars, in_moved_time, shared
from tests.limits.redis_server import RedisServer
from tests.ports import free_port
from tests.randomness import SeededRandomness

CLOSED, DEGRADED, OPEN, HALF_OPEN, RAMP = CircuitState
WRITE, INQUIRY = CallGroup


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    with Redis(port=redis_server.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def scripts(client: Redis, clock: MovedClock) -> MovedScriptRunner:
    return MovedScriptRunner(client, clock)


@pytest.fixture
def fleet_of(scripts: MovedScriptRunner, clock: MovedClock) -> Callable[[int], Sidecars]:
    return lambda count: Sidecars(clock, [shared(clock, scripts) for _ in range(count)])


def states(fleet: Sidecars) -> list[CircuitState]:
    return [circuits.view("acme", WRITE).state for circuits in fleet.all]


async def opened(fleet: Sidecars) -> None:
    await fleet.sync()
    fleet.see(BAD)
    await fleet.pass_time(1)
    assert set(states(fleet)) == {OPEN}


async def half_open(fleet: Sidecars) -> None:
    await opened(fleet)
    await fleet.pass_time(1.5)
    assert {circuits.view("acme", WRITE).decision for circuits in fleet.all} == {CircuitDecision.PROBE}


# --- one of many


async def test_one_bad_sidecar_of_eleven_opens_only_for_itself(fleet_of):
    fleet = fleet_of(11)
    await fleet.sync()
    fleet.see(WELL, who=range(10))
    fleet.see(BAD, who=[10])
    await fleet.pass_time(1)
    assert states(fleet) == [CLOSED] * 10 + [OPEN]
    assert fleet[10].view("acme", WRITE).decision is CircuitDecision.REFUSE


async def test_the_lone_bad_one_finds_its_own_way_back(fleet_of):
    fleet = fleet_of(11)
    await fleet.sync()
    fleet.see(WELL, who=range(10))
    fleet.see(BAD, who=[10])
    await fleet.pass_time(2.5)
    for _ in range(5):
        probe = await fleet[10].take_probe("acme", WRITE, 5.0, repeatable=True)
        assert probe is not None
        assert not probe.fleet
        await fleet[10].end_probe(probe, WELL)
    await fleet.pass_time(4)
    assert states(fleet) == [CLOSED] * 11


async def test_ten_bad_sidecars_of_eleven_open_for_all(fleet_of):
    fleet = fleet_of(11)
    await fleet.sync()
    fleet.see(BAD, who=range(10))
    fleet.see(WELL, who=[10])
    await fleet.pass_time(1)
    assert states(fleet) == [OPEN] * 11
    assert all(standing.fleet for standing in fleet[10].statuses())


async def test_sidecars_that_opened_for_themselves_still_make_a_quorum(fleet_of):
    fleet = fleet_of(10)
    await fleet.sync()
    fleet.see(BAD)
    fleet.clock.seconds += 0.2
    fleet.see(BAD, 1)
    assert not any(standing.fleet and standing.state is OPEN for standing in fleet[0].statuses())
    assert states(fleet) == [OPEN] * 10
    await fleet.pass_time(1)
    assert all(standing.fleet for standing in fleet[0].statuses() if standing.group is WRITE)


async def test_a_sidecar_that_is_gone_is_no_part_of_the_quorum(fleet_of, clock):
    fleet = fleet_of(11)
    await fleet.sync()
    gone, clock.seconds = fleet.all[1:], clock.seconds + 2.5
    fleet.all = fleet.all[:1]
    fleet.see(BAD)
    await fleet.pass_time(0.5)
    assert len(gone) == 10
    (standing,) = [standing for standing in fleet[0].statuses() if standing.group is WRITE]
    assert (standing.state, standing.fleet, standing.sidecars) == (OPEN, True, 1)


async def test_a_new_sidecar_learns_at_its_first_report_that_the_circuit_is_open(fleet_of, scripts, clock):
    fleet = fleet_of(3)
    await opened(fleet)
    newcomer = shared(clock, scripts)
    await newcomer.sync()
    assert newcomer.view("acme", WRITE).decision is CircuitDecision.REFUSE


# --- probes


async def test_fifty_sidecars_that_race_get_three_probes(fleet_of):
    fleet = fleet_of(50)
    await half_open(fleet)
    asked = (circuits.take_probe("acme", WRITE, 5.0, repeatable=True) for circuits in fleet.all)
    probes = [probe for probe in await asyncio.gather(*asked) if probe is not None]
    assert len(probes) == 3
    fleet.clock.seconds += 6.0  # all three holders died
    asked = (circuits.take_probe("acme", WRITE, 5.0, repeatable=True) for circuits in fleet.all)
    assert sum(probe is not None for probe in await asyncio.gather(*asked)) == 3
    await fleet[0].end_probe(probes[0], BAD)  # a late vote of the first round
    await fleet.sync()
    assert set(states(fleet)) == {HALF_OPEN}


async def test_five_good_probes_by_anyone_let_all_ramp_up(fleet_of):
    fleet = fleet_of(5)
    await half_open(fleet)
    for circuits in fleet.all:
        probe = await circuits.take_probe("acme", WRITE, 5.0, repeatable=True)
        assert probe is not None
        await circuits.end_probe(probe, WELL)
    changes = await fleet.sync()
    assert set(states(fleet)) == {RAMP}
    assert sum(change.recovered for change in changes if change.group is WRITE) == 5
    await fleet.pass_time(3)
    assert set(states(fleet)) == {CLOSED}


async def test_a_vote_that_the_store_did_not_hear_is_said_again(fleet_of, scripts):
    fleet = fleet_of(2)
    await half_open(fleet)
    for _ in range(machine.PROBES_OK):
        probe = await fleet[0].take_probe("acme", WRITE, 30.0, repeatable=True)
        assert probe is not None
        scripts.down = True
        await fleet[0].end_probe(probe, WELL)
        scripts.down = False
        await fleet.sync()
    await fleet.sync()
    assert set(states(fleet)) == {RAMP}


async def test_a_probe_whose_grant_was_not_heard_is_given_back(fleet_of, scripts, client):
    fleet = fleet_of(1)
    await half_open(fleet)
    scripts.deaf = True
    assert await fleet[0].take_probe("acme", WRITE, 30.0, repeatable=True) is None
    scripts.deaf = False
    leases = "test:circuit:{acme}:write:leases"
    assert client.zcard(leases) == 1
    await fleet.sync()
    assert client.zcard(leases) == 0


async def test_who_was_given_no_probe_does_not_ask_again_at_once(fleet_of, scripts):
    fleet = fleet_of(4)
    await half_open(fleet)
    for circuits in fleet.all:
        await circuits.take_probe("acme", WRITE, 5.0, repeatable=True)
    calls = scripts.calls
    for _ in range(1000):
        view = fleet[3].view("acme", WRITE)
        assert (view.decision, view.reason) == (CircuitDecision.REFUSE, CircuitRefusal.PROBING)
        assert await fleet[3].take_probe("acme", WRITE, 5.0, repeatable=True) is None
    assert scripts.calls == calls


async def test_no_call_asks_the_store(fleet_of, scripts):
    fleet = fleet_of(2)
    for prepare in (fleet.sync, lambda: opened(fleet)):
        await prepare()
        calls = scripts.calls
        for _ in range(100):
            fleet[0].view("acme", WRITE)
            fleet[0].add_sample("acme", WRITE, BAD)
        assert scripts.calls == calls


async def test_one_script_call_for_each_provider_and_group_and_report(fleet_of, scripts):
    await fleet_of(1).sync()
    assert scripts.calls == len(RULES) * len(CallGroup)


# --- operators and Retry-After, fleet-wide


async def test_a_forced_state_reaches_every_sidecar(fleet_of):
    fleet = fleet_of(3)
    await fleet[0].force("acme", INQUIRY, CircuitCommand(OPEN, "ada", "maintenance", 60.0))
    await fleet.sync()
    assert {circuits.view("acme", INQUIRY).reason for circuits in fleet.all} == {CircuitRefusal.FORCED}
    await fleet[2].force("acme", INQUIRY, CircuitCommand(None, "bob", "over"))
    await fleet.sync()
    assert {circuits.view("acme", INQUIRY).state for circuits in fleet.all} == {HALF_OPEN}


# --- the store goes, and comes back


async def test_every_sidecar_knows_how_many_they_are_also_without_calls_and_after_the_store_is_gone(scripts, clock):
    known: list[dict[str, int]] = [{} for _ in range(7)]
    fleet = Sidecars(clock, [shared(clock, scripts, peers) for peers in known])
    await fleet.pass_time(1)
    scripts.down = True
    await fleet.pass_time(60)
    assert known == [{"acme": 7}] * 7


async def test_an_open_of_the_fleet_is_honoured_when_the_store_is_gone(fleet_of, scripts):
    fleet = fleet_of(3)
    await fleet[0].force("acme", WRITE, CircuitCommand(OPEN, "ada", "maintenance", 10.0))
    await fleet.sync()
    scripts.down = True
    await fleet.pass_time(9.5)
    assert {circuits.view("acme", WRITE).decision for circuits in fleet.all} == {CircuitDecision.REFUSE}
    await fleet.pass_time(0.5)
    probe = await fleet[0].take_probe("acme", WRITE, 5.0, repeatable=True)
    assert probe is not None
    assert not probe.fleet


async def test_without_the_store_a_sidecar_judges_for_itself_and_later_hears_the_fleet_again(fleet_of, scripts, client):
    fleet = fleet_of(3)
    await fleet.sync()
    scripts.down = True
    fleet.see(BAD, who=[1])
    await fleet.pass_time(0.5)
    assert states(fleet) == [CLOSED, OPEN, CLOSED]
    with pytest.raises(StoreUnavailable):
        await fleet[0].force("acme", WRITE, CircuitCommand(OPEN, "ada", "nobody hears it"))
    client.flushall()
    scripts.down = False
    await fleet.pass_time(20)  # nobody probes: after a while ordinary calls try it
    assert states(fleet) == [CLOSED] * 3
    await opened(fleet)
    assert all(standing.fleet for standing in fleet[0].statuses())


async def test_a_store_that_forgot_everything_starts_from_closed(fleet_of, client):
    fleet = fleet_of(3)
    await opened(fleet)
    client.flushall()
    await fleet.pass_time(0.5)
    assert states(fleet) == [CLOSED] * 3
    fleet.see(BAD)
    await fleet.pass_time(1)
    assert states(fleet) == [OPEN] * 3


async def test_a_real_redis_is_killed_and_comes_back(mortal_redis):
    target = parse_limits_url(mortal_redis.url)
    chance, clock = SeededRandomness(5), SystemClock()
    scripts = RedisScriptRunner.open(target, clock, chance, timeout_s=5.0)  # the machine may be busy
    circuits = RedisCircuits(scripts, target.prefix, lambda: RULES, clock, chance, {})

    async def until(true: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.05)
                await circuits.sync()

    try:
        await until(lambda: any(standing.fleet for standing in circuits.statuses()))
        mortal_redis.stop()
        await until(lambda: circuits.statuses() and not any(standing.fleet for standing in circuits.statuses()))
        for _ in range(30):
            circuits.add_sample("acme", WRITE, BAD)
        await until(lambda: circuits.view("acme", WRITE).decision is CircuitDecision.REFUSE)
        mortal_redis.start()
        await until(lambda: any(standing.fleet for standing in circuits.statuses()))
        await circuits.force("acme", INQUIRY, CircuitCommand(OPEN, "ada", "heard again", 60.0))
        assert circuits.view("acme", INQUIRY).reason is CircuitRefusal.FORCED
    finally:
        await scripts.close()


async def test_what_another_version_wrote_stops_nobody(fleet_of, client):
    fleet = fleet_of(3)
    state, rows, *_ = keys_of("test", "acme", WRITE)
    client.hset(rows, "an older one", "1700000000000 0 5")
    await opened(fleet)
    client.hset(state, "state", "a_later_state")
    await fleet.pass_time(5)
    assert {circuits.view("acme", WRITE).decision for circuits in fleet.all} <= {
        CircuitDecision.PERMIT,
        CircuitDecision.PROBE,
    }


async def eventually(ask: Callable[[], Awaitable[object]]) -> None:
    while True:
        if await ask():
            return
        await asyncio.sleep(0.02)


async def hears_the_fleet(circuits: RedisCircuits) -> bool:
    await circuits.sync()
    return all(standing.fleet for standing in circuits.statuses())


async def test_it_runs_on_a_cluster(tmp_path):
    server = RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    server.start()
    server.call("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    target = parse_limits_url(server.url.replace("redis://", "redis+cluster://"))
    scripts = RedisScriptRunner.open(target, SystemClock(), SeededRandomness(1), timeout_s=0.1)
    circuits = RedisCircuits(scripts, target.prefix, lambda: RULES, SystemClock(), SeededRandomness(1), {})
    try:
        async with asyncio.timeout(20):
            await eventually(lambda: hears_the_fleet(circuits))
            await circuits.force("acme", WRITE, CircuitCommand(OPEN, "ada", "maintenance", 0.001))
            await eventually(lambda: circuits.take_probe("acme", WRITE, 5.0, repeatable=True))
    finally:
        await scripts.close()
        server.stop()


# --- a hard outage


@pytest.mark.parametrize("count", [1, 10, 50])
async def test_in_a_hard_outage_few_calls_are_tried_once_the_circuit_is_open(fleet_of, clock, count):
    """Twenty calls a second in all, whoever makes them; every one that is tried fails."""
    fleet, random = fleet_of(count), Random(count)
    calls, tried, open_at = 0, 0, None
    await fleet.sync()
    for tick in range(20 * 20):
        clock.seconds += 0.05
        for circuits in fleet.all[tick % 10 :: 10]:
            await circuits.sync()
        circuits = random.choice(fleet.all)
        went = await try_a_call(circuits)
        if open_at is None:
            assert tick < 12 * 20, "never opened"
            open_at = tick if OPEN in states(fleet) else None
        else:
            calls, tried = calls + 1, tried + went
    assert tried / calls <= 0.2


async def try_a_call(circuits: Any) -> bool:
    view = circuits.view("acme", WRITE)
    if view.decision is CircuitDecision.REFUSE:
        return False
    probe = None
    if view.decision is CircuitDecision.PROBE:
        probe = await circuits.take_probe("acme", WRITE, 1.0, repeatable=True)
        if probe is None:
            return False
    circuits.add_sample("acme", WRITE, BAD)
    if probe is not None:
        await circuits.end_probe(probe, BAD)
    return True


# --- the same machine twice


PARTIES = ["", *(f"c:{number}" for number in range(8))]


class Twins:
    """The core's machine and the script, fed the same."""

    def __init__(self, client: Redis, rules: CircuitRules) -> None:
        self.client = client
        self.rules = rules
        self.fleet = SharedCircuit()
        self.text = in_moved_time(CIRCUIT).text
        shares = (*vars_of(rules.open_at, "bad unknown slow"), *vars_of(rules.degrade_at, "bad unknown slow throttled"))
        self.numbers = (rules.minimum, rules.minimum_to_open, *map(repr, shares))

    def run(self, now_ms: int, verb: str, draw: float, *words: Any) -> CircuitReply:
        self.client.set("moved-time", now_ms)
        arguments = map(str, (verb, repr(draw), *self.numbers, *words))
        keys = keys_of("twin", "acme", WRITE)
        return CircuitReply.read(self.client.eval(self.text, len(keys), *keys, *arguments))

    def step(self, random: Random, now_ms: int) -> tuple[str, CircuitReply, bool]:
        draw, who, epoch = random.random(), str(random.randrange(6)), self.fleet.circuit.epoch
        verb = random.choices(["report", "take", "vote", "force", "release"], [12, 6, 8, 0.3, 0.3])[0]
        granted = False
        words: Sequence[Any]
        match verb:
            case "report":
                epoch -= random.random() < 0.1
                recent, whole = counts(random), counts(random)
                recent = replace(recent, asked=min(recent.asked, whole.asked))  # they are part of the whole
                row = SidecarReport(now_ms, epoch, recent, whole, asks(random, whole, now_ms))
                words = report_arguments(who, row, now_ms, 0)
                self.fleet = machine.report(self.fleet, who, row, now_ms, draw, self.rules)
            case "take":
                words = (who, 1500)
                self.fleet, granted = machine.take_probe(self.fleet, who, now_ms, 1500)
            case "vote":
                ok = random.choice([True, True, True, True, True, True, False, None])
                words = (who, "" if ok is None else str(int(ok)))
                self.fleet = machine.end_probe(self.fleet, who, ok, now_ms, draw)
            case "force":
                state, by = random.choice(sorted(machine.FORCIBLE)), ForcedState("ada", "a reason")
                words = (state, 3000, by.actor, by.reason)
                self.fleet = machine.force(self.fleet, state, by, now_ms, 3000)
            case _:
                words = ()
                self.fleet = machine.release(self.fleet, now_ms)
        return verb, self.run(now_ms, verb, draw, *words), granted


def vars_of(value: object, names: str) -> list[float]:
    return [getattr(value, name) for name in names.split()]


def asks(random: Random, whole: HealthCounts, now_ms: int) -> dict[str, int]:
    parties = random.sample(PARTIES, random.randint(0, 3)) if whole.asked else []
    return {party: now_ms + random.choice([0, 700, 4000, 400_000]) for party in parties}


def counts(random: Random) -> HealthCounts:
    total = random.choice([0, 3, 10, 40])
    ill = random.random() < 0.5

    def share() -> int:
        return random.randint(0, total) if ill and random.random() < 0.6 else 0

    bad = total if ill and random.random() < 0.4 else share()
    return HealthCounts(total, bad, share(), min(bad, share()), share(), share())


@pytest.mark.parametrize("seed", range(12))
def test_the_script_and_the_core_agree_on_every_field_after_every_step(client, seed):
    random, now_ms = Random(seed), 1_700_000_000_000
    rules = CircuitRules(minimum=20)
    twins, seen = Twins(client, rules.for_group(INQUIRY) if seed % 3 == 0 else rules), set()
    gates: set[bool] = set()
    for number in range(400):
        now_ms += random.choice([0, 20, 100, 400, 400, 1000, 3000])
        verb, reply, granted = twins.step(random, now_ms)
        assert reply.circuit == twins.fleet.circuit, (number, verb)
        if verb == "report":
            assert reply.holds == {party: hold.until_ms for party, hold in twins.fleet.holds.items()}
            assert reply.holds_seen == max((hold.asked_ms for hold in twins.fleet.holds.values()), default=0)
            gates.add(reply.circuit.gate_ms > now_ms)
        assert reply.now_ms == now_ms
        assert verb != "take" or reply.granted == granted, number
        seen.add(reply.circuit.state)
    assert seen >= {CLOSED, OPEN, HALF_OPEN}
    assert gates == {True, False}


def test_both_know_the_same_numbers():
    path = Path(machine.__file__).parents[1] / "limits" / "lua" / "circuit.lua"
    heads = re.findall(r"^local ([A-Z_, ]+) = ([\d., ]+)", path.read_text(), re.MULTILINE)
    found = {
        name: float(number)
        for names, numbers in heads
        for name, number in zip(names.split(", "), numbers.strip().split(", "), strict=True)
    }
    del found["KEPT"], found["TOLD_MAX"]
    stages = found.pop("RAMP_STAGES")
    assert stages == len(machine.RAMP_SHARES)
    for name, number in found.items():
        known = vars(holds) | vars(machine)
        ours = [known[ours] for ours in (name, f"{name}_MS", f"_{name}") if ours in known]
        assert ours == [number], name
