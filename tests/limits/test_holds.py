"""Whom a provider asked to wait is held, in every sidecar; others are not, unless several were refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from paywitness.core.circuit import CallGroup, CircuitDecision, CircuitRefusal, CircuitState, CircuitView
from paywitness.core.holds import EVERYONE, LimitedBy
from paywitness.core.provider_health import Health, HealthSample
from paywitness.limits.circuits import CircuitCommand
from paywitness.limits.redis_circuits import keys_of
from tests.limits.circuits_world import BAD, WELL, MovedClock, MovedScriptRunner, Sidecars, local, shared
from tests.limits.redis_server import RedisServer

WRITE, INQUIRY = CallGroup.WRITE, CallGroup.INQUIRY
ONE, TWO, THREE, OTHER = "c:one", "c:two", "c:three", "c:other"


def told(seconds: float) -> HealthSample:
    return HealthSample(Health.THROTTLED, retry_after_s=seconds)


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


FleetOf = Callable[[int], Sidecars]


@pytest.fixture
def fleet_of(scripts: MovedScriptRunner, clock: MovedClock) -> FleetOf:
    return lambda count: Sidecars(clock, [shared(clock, scripts) for _ in range(count)])


@pytest.fixture(params=["local", "redis"])
def one(request: pytest.FixtureRequest, clock: MovedClock) -> Sidecars:
    if request.param == "local":
        return Sidecars(clock, [local(clock)])
    fleet_of: FleetOf = request.getfixturevalue("fleet_of")
    return fleet_of(1)


def views(fleet: Sidecars, party: str) -> list[CircuitView]:
    return [circuits.view("acme", WRITE, party) for circuits in fleet.all]


def decisions(fleet: Sidecars, party: str) -> set[CircuitDecision]:
    return {view.decision for view in views(fleet, party)}


REFUSED, PERMITTED = {CircuitDecision.REFUSE}, {CircuitDecision.PERMIT}


async def test_one_429_holds_whom_it_concerns_at_once_and_to_its_end(one: Sidecars) -> None:
    await one.sync()
    one.see(told(120.0), 1, party=ONE)
    (view,) = views(one, ONE)
    assert (view.reason, view.retry_after_s, view.limited_by) == (
        CircuitRefusal.THROTTLED,
        120.0,
        LimitedBy.CREDENTIAL,
    )
    await one.pass_time(119.5)
    assert decisions(one, ONE) == REFUSED
    await one.pass_time(0.5)
    assert decisions(one, ONE) == PERMITTED


async def test_refused_and_failed_calls_of_one_account_stop_no_other(one: Sidecars) -> None:
    """Three in ten seconds, one of them with a Retry-After: it closed the provider for everyone, for two minutes."""
    await one.sync()
    one.see(told(120.0), 1, party=ONE)
    one.see(BAD, 2, party=ONE)
    one.see(told(120.0), 20, party=ONE)
    await one.pass_time(1)
    assert (decisions(one, ONE), decisions(one, OTHER)) == (REFUSED, PERMITTED)


async def test_several_that_were_refused_hold_the_others_for_half_a_minute_at_most(one: Sidecars) -> None:
    await one.sync()
    for party in (ONE, TWO, THREE):
        one.see(told(120.0), 1, party=party)
    await one.pass_time(0.5)
    (view,) = views(one, OTHER)
    assert (view.reason, view.limited_by) == (CircuitRefusal.THROTTLED, LimitedBy.PROVIDER)
    assert view.retry_after_s <= 30.0
    assert views(one, ONE)[0].retry_after_s == pytest.approx(119.5)
    await one.pass_time(30)
    assert (decisions(one, OTHER), decisions(one, ONE)) == (PERMITTED, REFUSED)
    one.see(WELL, 1, party=OTHER)
    await one.pass_time(30)
    assert (decisions(one, OTHER), decisions(one, ONE)) == (PERMITTED, REFUSED)


async def test_several_among_many_more_hold_nobody_else(one: Sidecars) -> None:
    await one.sync()
    one.see(WELL, 100, party=OTHER)
    for party in (ONE, TWO, THREE):
        one.see(told(20.0), 1, party=party)
    await one.pass_time(1)
    assert decisions(one, OTHER) == PERMITTED


async def test_a_429_that_concerns_the_provider_holds_everyone_as_long_as_it_says(one: Sidecars) -> None:
    await one.sync()
    one.see(told(120.0), 1, party=EVERYONE)
    await one.pass_time(119)
    assert {view.limited_by for view in views(one, OTHER)} == {LimitedBy.PROVIDER}
    assert one[0].statuses()[-1].throttled
    await one.pass_time(1)
    assert decisions(one, OTHER) == PERMITTED


async def test_a_hold_of_writes_holds_no_inquiry(one: Sidecars) -> None:
    one.see(told(120.0), 1, party=ONE)
    await one.pass_time(0.5)
    assert one[0].view("acme", INQUIRY, ONE).decision is CircuitDecision.PERMIT


async def test_an_operator_who_forces_a_circuit_closed_stands_above_every_hold(one: Sidecars) -> None:
    await one.sync()
    one.see(told(120.0), 1, party=ONE)
    await one[0].force("acme", WRITE, CircuitCommand(CircuitState.CLOSED, "ada", "they told us it is over", 60.0))
    assert decisions(one, ONE) == PERMITTED
    await one.pass_time(60)
    assert decisions(one, ONE) == REFUSED


async def test_holds_are_shown_by_kind(one: Sidecars) -> None:
    await one.sync()
    for party in (ONE, TWO):
        one.see(told(120.0), 1, party=party)
    (found,) = [status for status in one[0].statuses() if status.group is WRITE]
    assert [(hold.limited_by, hold.parties, hold.longest_s) for hold in found.holds] == [("credential", 2, 120.0)]
    assert not found.throttled


# --- a fleet


async def test_what_one_sidecar_was_told_holds_its_party_in_all(fleet_of: FleetOf) -> None:
    fleet = fleet_of(3)
    await fleet.sync()
    fleet.see(told(120.0), 1, who=[0], party=ONE)
    await fleet.pass_time(1)
    assert (decisions(fleet, ONE), decisions(fleet, OTHER)) == (REFUSED, PERMITTED)
    assert {round(view.retry_after_s) for view in views(fleet, ONE)} == {119}
    await fleet.pass_time(119)
    assert decisions(fleet, ONE) == PERMITTED


async def test_parties_refused_by_different_sidecars_are_several(fleet_of: FleetOf) -> None:
    fleet = fleet_of(4)
    await fleet.sync()
    for number, party in enumerate((ONE, TWO, THREE)):
        fleet.see(told(20.0), 1, who=[number], party=party)
    await fleet.pass_time(1)
    assert decisions(fleet, OTHER) == REFUSED


async def test_a_new_sidecar_learns_all_holds_however_many(
    fleet_of: FleetOf, scripts: MovedScriptRunner, clock: MovedClock
) -> None:
    fleet = fleet_of(1)
    for number in range(450):
        fleet.see(told(600.0), 1, party=f"c:{number}")
    await fleet.pass_time(3)
    late = Sidecars(clock, [shared(clock, scripts)])
    await late.pass_time(2)
    assert all(decisions(late, f"c:{number}") == REFUSED for number in range(450))


async def test_a_hold_that_the_store_did_not_hear_is_told_again(fleet_of: FleetOf, scripts: MovedScriptRunner) -> None:
    fleet = fleet_of(2)
    await fleet.sync()
    scripts.down = True
    fleet.see(told(120.0), 1, who=[0], party=ONE)
    await fleet.pass_time(1)
    assert [view.decision for view in views(fleet, ONE)] == [CircuitDecision.REFUSE, CircuitDecision.PERMIT]
    scripts.down = False
    await fleet.pass_time(1)
    assert decisions(fleet, ONE) == REFUSED


async def test_without_the_store_a_hold_lasts_to_its_end(fleet_of: FleetOf, scripts: MovedScriptRunner) -> None:
    fleet = fleet_of(2)
    await fleet.sync()
    fleet.see(told(60.0), 1, who=[0], party=ONE)
    await fleet.pass_time(1)
    scripts.down = True
    await fleet.pass_time(58)
    assert decisions(fleet, ONE) == REFUSED
    await fleet.pass_time(1.5)
    assert decisions(fleet, ONE) == PERMITTED


async def test_a_store_whose_clock_went_back_tells_its_holds_again(fleet_of: FleetOf, client: Redis) -> None:
    fleet = fleet_of(2)
    fleet.see(told(600.0), 1, who=[0], party=ONE)
    await fleet.pass_time(1)
    client.flushall()
    for circuits in fleet.all:
        circuits._scripts._ahead_ms -= 3_600_000  # type: ignore[attr-defined]
        break  # one runner for all
    fleet.see(told(600.0), 1, who=[0], party=TWO)
    await fleet.pass_time(1)
    assert decisions(fleet, TWO) == REFUSED


async def test_a_store_that_evicted_one_of_its_keys_still_answers(fleet_of: FleetOf, client: Redis) -> None:
    fleet = fleet_of(2)
    for name in ("holds", "holds-asked"):
        fleet.see(told(600.0), 1, who=[0], party=ONE)
        await fleet.pass_time(1)
        client.delete(*(key for key in keys_of("test", "acme", WRITE) if key.endswith(f":{name}")))
        fleet.see(told(600.0), 1, who=[1], party=TWO)
        await fleet.pass_time(1)
        assert decisions(fleet, TWO) == decisions(fleet, ONE) == REFUSED
        await fleet.pass_time(11)
        assert decisions(fleet, OTHER) == PERMITTED
    assert {status.fleet for circuits in fleet.all for status in circuits.statuses()} == {True}


async def test_no_clean_call_asks_the_store_for_a_hold(fleet_of: FleetOf, scripts: MovedScriptRunner) -> None:
    fleet = fleet_of(1)
    fleet.see(told(120.0), 1, party=ONE)
    await fleet.sync()
    before = scripts.calls
    for party in (ONE, OTHER) * 50:
        fleet[0].view("acme", WRITE, party)
        fleet[0].add_sample("acme", WRITE, WELL, party)
    assert scripts.calls == before


async def test_beside_an_earlier_release_each_keeps_its_own_rule(fleet_of: FleetOf, client: Redis) -> None:
    """Its `gate` closes the provider to its own sidecars; its rows count here, and ours can be read by it."""
    fleet = fleet_of(2)
    await fleet.sync()
    state, rows, *_ = keys_of("test", "acme", WRITE)
    now_ms = int(fleet.clock.seconds * 1000) + 7_654_321
    client.hset(state, "gate", now_ms + 300_000)
    client.hset(rows, "an earlier one", f"{now_ms} 0 30 30 0 0 0 30 30 0 0 0 {now_ms + 300_000}")
    fleet.see(BAD, 30, who=[0], party=OTHER)
    assert decisions(fleet, OTHER) == PERMITTED
    await fleet.pass_time(0.5)
    assert {view.state for view in views(fleet, OTHER)} == {CircuitState.OPEN}
    assert client.hget(state, "gate") == str(now_ms + 300_000)
    ours = [row for name, row in client.hgetall(rows).items() if name != "an earlier one"]
    assert {len(row.split()) for row in ours} == {13}
