"""What every circuit does, alone or with a fleet: one suite over the local one and the one on Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from paywitness.core.circuit import CallGroup, CircuitDecision, CircuitRefusal, CircuitState
from paywitness.core.provider_health import Health, HealthSample
from paywitness.limits.circuits import CircuitChange, CircuitCommand, Circuits
from tests.limits.circuits_world import BAD, UNKNOWN, WELL, MovedClock, MovedScriptRunner, Sidecars, local, shared
from tests.limits.redis_server import RedisServer

CLOSED, DEGRADED, OPEN, HALF_OPEN, RAMP = CircuitState
WRITE, INQUIRY = CallGroup


@pytest.fixture(params=["local", "redis"])
def one(request: pytest.FixtureRequest) -> Iterator[Sidecars]:
    """One sidecar, and the time it lives in."""
    clock = MovedClock()
    if request.param == "local":
        yield Sidecars(clock, [local(clock)])
        return
    server: RedisServer = request.getfixturevalue("redis_server")
    with Redis(port=server.port, decode_responses=True) as client:
        yield Sidecars(clock, [shared(clock, MovedScriptRunner(client, clock))])


def state(circuits: Circuits, group: CallGroup = WRITE) -> CircuitState:
    return circuits.view("acme", group).state


async def opened(one: Sidecars) -> Circuits:
    await one.sync()
    one.see(BAD)
    await one.pass_time(0.5)
    assert state(one[0]) is OPEN
    return one[0]


async def half_open(one: Sidecars) -> Circuits:
    circuits = await opened(one)
    one.clock.seconds += circuits.view("acme", WRITE).retry_after_s
    assert circuits.view("acme", WRITE).decision is CircuitDecision.PROBE
    return circuits


async def probe(circuits: Circuits, observation: HealthSample | None) -> None:
    taken = await circuits.take_probe("acme", WRITE, 5.0, repeatable=True)
    assert taken is not None
    circuits.add_sample("acme", WRITE, observation)
    await circuits.end_probe(taken, observation)


def test_a_provider_of_whom_nothing_is_known_may_be_called(one):
    assert one[0].view("acme", WRITE).decision is CircuitDecision.PERMIT


async def test_a_healthy_provider_may_be_called(one):
    one.see(WELL)
    assert await one.pass_time(2) == []
    assert one[0].view("acme", WRITE).decision is CircuitDecision.PERMIT
    assert not one[0].view("acme", WRITE).degraded


async def test_a_provider_that_is_down_is_not_called(one):
    circuits = await opened(one)
    view = circuits.view("acme", WRITE)
    assert (view.decision, view.reason) == (CircuitDecision.REFUSE, CircuitRefusal.OPEN)
    assert 0 < view.retry_after_s <= 1.2


async def test_an_open_write_circuit_does_not_stop_inquiries(one):
    circuits = await opened(one)
    assert circuits.view("acme", INQUIRY).decision is CircuitDecision.PERMIT


async def test_bad_news_opens_at_once_for_who_has_it(one):
    one.see(UNKNOWN)
    one.clock.seconds += 0.2
    one.see(UNKNOWN, 1)
    assert one[0].view("acme", WRITE).decision is CircuitDecision.REFUSE


async def test_a_partial_outage_only_degrades(one):
    one.see(WELL, 70)
    one.see(BAD, 30)
    (change,) = await one.pass_time(0.5)
    assert (change.before, change.after) == (CLOSED, DEGRADED)
    view = one[0].view("acme", WRITE)
    assert view.decision is CircuitDecision.PERMIT
    assert view.degraded


async def test_the_whole_way_back(one):
    circuits = await half_open(one)
    for _ in range(5):
        await probe(circuits, WELL)
    assert state(circuits) is RAMP
    (change,) = await one.sync()
    assert change.recovered
    passages = [circuits.view("acme", WRITE).decision for _ in range(2000)]
    assert 0.2 < passages.count(CircuitDecision.PERMIT) / 2000 < 0.3
    one.clock.seconds += 1.0
    passages = [circuits.view("acme", WRITE).decision for _ in range(2000)]
    assert 0.45 < passages.count(CircuitDecision.PERMIT) / 2000 < 0.55
    await one.pass_time(2.5)
    assert state(circuits) is CLOSED
    assert [one.state for one in circuits.statuses()] == [CLOSED, CLOSED]


async def test_failures_in_the_ramp_open_it_again_and_for_longer(one):
    circuits = await half_open(one)
    for _ in range(5):
        await probe(circuits, WELL)
    await one.sync()
    one.see(BAD, 5)
    await one.pass_time(0.5)
    view = circuits.view("acme", WRITE)
    assert view.state is OPEN
    assert view.retry_after_s > 1.5 * 0.8 - 0.5


async def test_two_bad_probes_open_it_again(one):
    circuits = await half_open(one)
    await probe(circuits, BAD)
    assert state(circuits) is HALF_OPEN
    await probe(circuits, BAD)
    assert state(circuits) is OPEN


@pytest.mark.parametrize("observation", [None, HealthSample(Health.THROTTLED)], ids=["nothing", "throttled"])
async def test_a_probe_that_shows_nothing_has_no_vote(one, observation):
    circuits = await half_open(one)
    for _ in range(9):
        await probe(circuits, observation)
    assert state(circuits) is HALF_OPEN


async def test_three_probes_and_no_more_until_one_is_over(one):
    circuits = await half_open(one)
    probes = [await circuits.take_probe("acme", WRITE, 5.0, repeatable=True) for _ in range(3)]
    assert None not in probes
    assert await circuits.take_probe("acme", WRITE, 5.0, repeatable=True) is None
    one.clock.seconds += 6.0  # a try and a second: who took them is gone
    assert await circuits.take_probe("acme", WRITE, 5.0, repeatable=True) is not None
    assert probes[0] is not None
    await circuits.end_probe(probes[0], BAD)  # late
    assert state(circuits) is HALF_OPEN


async def test_what_cannot_be_repeated_is_never_a_probe(one):
    circuits = await half_open(one)
    assert await circuits.take_probe("acme", WRITE, 5.0, repeatable=False) is None


async def test_a_provider_that_dedupes_nothing_is_tried_again_all_the_same(one):
    circuits = await half_open(one)
    await one.pass_time(11)
    assert state(circuits) is RAMP


async def test_an_answer_to_a_call_of_before_says_nothing_about_now(one):
    circuits = await half_open(one)
    for _ in range(5):
        await probe(circuits, WELL)
    await one.sync()
    one.see(HealthSample(Health.UNKNOWN, duration_s=20.0))
    await one.pass_time(1)
    assert state(circuits) is RAMP


async def test_a_forced_state_stands_until_its_time(one):
    await one[0].force("acme", WRITE, CircuitCommand(OPEN, "ada", "they asked us to", 60.0))
    one.see(WELL)
    await one.pass_time(59)
    view = one[0].view("acme", WRITE)
    assert (view.decision, view.reason) == (CircuitDecision.REFUSE, CircuitRefusal.FORCED)
    (found,) = [found for found in one[0].statuses() if found.group is WRITE]
    assert found.forced is not None
    assert (found.forced.actor, found.forced.reason) == ("ada", "they asked us to")
    assert found.retry_after_s == pytest.approx(1.0)
    await one.pass_time(1)
    assert state(one[0]) is HALF_OPEN


async def test_forced_closed_lets_everything_pass(one):
    await one[0].force("acme", WRITE, CircuitCommand(CLOSED, "ada", "we know better", 60.0))
    one.see(BAD)
    await one.pass_time(5)
    assert one[0].view("acme", WRITE).decision is CircuitDecision.PERMIT
    await one[0].force("acme", WRITE, CircuitCommand(None, "ada", "we did not"))
    one.see(BAD)
    await one.pass_time(0.5)
    assert state(one[0]) is OPEN


@pytest.mark.parametrize("before", CircuitState)
@pytest.mark.parametrize("after", CircuitState)
def test_a_provider_has_recovered_when_calls_pass_again(before, after):
    down = {OPEN, HALF_OPEN}
    assert CircuitChange("acme", WRITE, before, after, fleet=True).recovered == (before in down and after not in down)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ((HALF_OPEN, "ada", "why not"), "cannot be forced"),
        ((OPEN, " ", "why not"), "who orders it"),
        ((OPEN, "ada", ""), "who orders it"),
        ((OPEN, "ada", "for ever", 1e9), "at most"),
    ],
)
def test_an_order_names_its_actor_its_reason_and_its_end(word, why):
    with pytest.raises(ValueError, match=why):
        CircuitCommand(*word)
