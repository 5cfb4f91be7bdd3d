"""The seeded schedule: chances, latency, outages and brownouts."""

from __future__ import annotations

import asyncio

import pytest

from paywitness_sandbox.faults.selection import ActiveSchedule, Latency, parse_schedule
from tests.sandbox.raw_client import FIN, SILENCE, call, charge, read_response, request_bytes, until


def in_force(source: dict, *, seed: int = 1, clock=lambda: 0.0) -> ActiveSchedule:
    return ActiveSchedule(parse_schedule(source, seed=seed, defaults={}), clock, {})


def names_drawn(source: dict, seed: int, times: int = 200) -> list[str]:
    weather = in_force(source, seed=seed)
    return [weather.draw(writes=True).fault.name for _ in range(times)]


async def faults_met(make_sandbox, seed: int) -> list[str | None]:
    sandbox = await make_sandbox(seed=seed, schedule={"faults": {"error_503": 0.3, "html_502": 0.3}})
    for number in range(30):
        await charge(sandbox, f"o-{number}")
    return [arrival.fault for arrival in sandbox.arrivals.arrivals]


async def test_the_same_seed_and_arrivals_meet_the_same_faults(make_sandbox) -> None:
    first = await faults_met(make_sandbox, seed=7)
    assert first == await faults_met(make_sandbox, seed=7)
    assert first != await faults_met(make_sandbox, seed=8)
    assert {None, "error_503", "html_502"} == set(first)


def test_chances_are_kept_in_the_long_run() -> None:
    drawn = names_drawn({"faults": {"error_503": 0.2, "slow": 0.05}}, seed=3, times=10_000)
    assert drawn.count("error_503") / 10_000 == pytest.approx(0.2, abs=0.02)
    assert drawn.count("slow") / 10_000 == pytest.approx(0.05, abs=0.01)


def test_a_latency_does_not_shift_the_faults() -> None:
    faults = {"error_503": 0.5}
    with_latency = {"faults": faults, "latency": {"kind": "exponential", "mean_s": 0.1}}
    assert names_drawn({"faults": faults}, seed=5) == names_drawn(with_latency, seed=5)


def test_a_schedule_for_writes_leaves_reads_alone() -> None:
    weather = in_force({"apply_to": "writes", "faults": {"error_503": 1}})
    assert [weather.draw(writes).fault.name for writes in (True, False)] == ["error_503", "-"]


@pytest.mark.parametrize(
    ("latency", "draw", "delay_s"),
    [
        (Latency("fixed", 0.2), 0.9, 0.2),
        (Latency("uniform", 0.1, 0.3), 0.5, 0.2),
        (Latency("exponential", 1.0), 0.5, 0.693),
        (Latency("lognormal", 0.4, 1.0), 0.5, 0.4),
        (Latency("exponential", 60.0), 1 - 1e-12, 60.0),
    ],
)
def test_latencies_follow_their_quantiles_up_to_the_bound(latency, draw, delay_s) -> None:
    assert latency.delay_s(draw) == pytest.approx(delay_s, abs=0.001)


async def test_latency_delays_the_work_and_holds_the_key(make_sandbox) -> None:
    sandbox = await make_sandbox(schedule={"latency": {"kind": "fixed", "delay_s": 60}})
    first = asyncio.create_task(charge(sandbox, key="k-1"))
    await until(lambda: sandbox.under_way == 1 and sandbox.arrivals.arrivals[0].order == "o-1")
    assert sandbox.ledger.effects() == 0
    assert (await charge(sandbox, key="k-1", fault="-")).status_code == 409
    first.cancel()
    sandbox.set_schedule({"latency": {"kind": "uniform", "low_s": 0.001, "high_s": 0.002}})
    assert (await charge(sandbox, key="k-2")).status_code == 200


async def test_an_outage_with_a_faults_name_has_its_window(make_sandbox) -> None:
    now = [1000.0]
    outage = {"start_s": 10, "duration_s": 5, "mode": "drop_after_commit"}
    sandbox = await make_sandbox(clock=lambda: now[0], schedule={"outages": [outage]})
    met = []
    for at in (1009.9, 1010.0, 1014.9, 1015.0):
        now[0] = at
        met.append((await charge(sandbox)).status_code)
    assert met == [200, None, None, 200]
    assert sandbox.ledger.effects() == 4


async def test_a_brownout_is_slow_and_sheds(make_sandbox) -> None:
    now = [0.0]
    brownout = {"start_s": 10, "duration_s": 5, "latency_s": 0.01, "error_probability": 1.0}
    sandbox = await make_sandbox(clock=lambda: now[0], schedule={"brownouts": [brownout]})
    before = (await charge(sandbox)).status_code
    now[0] = 12.0
    assert [before, (await charge(sandbox)).status_code] == [200, 503]
    assert in_force({"brownouts": [{**brownout, "start_s": 0}]}).draw(writes=True).delay_s == 0.01


READ = "/v1/charges?order=o-1"


async def test_read_faults_befall_reads_by_their_number_and_leave_writes_alone(make_sandbox) -> None:
    sandbox = await make_sandbox(schedule={"read_faults": "error_500, unauthorized, rate_limited(retry_after_s=3), -"})
    seen = []
    for number in range(5):
        assert (await charge(sandbox, f"w-{number}")).status_code == 200
        seen.append((await call(sandbox, "GET", READ)).status_code)
    assert seen == [500, 401, 429, 200, 200]


async def test_a_read_that_hangs_forever_is_not_a_write_that_does(make_sandbox) -> None:
    sandbox = await make_sandbox(schedule={"read_faults": "hang*", "apply_to": "writes"})
    for _ in range(2):
        assert (await call(sandbox, "GET", READ, wait_s=0.05)).end == SILENCE
    assert (await charge(sandbox)).status_code == 200


async def test_read_faults_have_chances_too(make_sandbox) -> None:
    sandbox = await make_sandbox(schedule={"read_faults": {"error_500": 0.5, "unauthorized": 0.5}})
    seen = [(await call(sandbox, "GET", READ)).status_code for _ in range(12)]
    assert set(seen) == {500, 401}
    assert (await charge(sandbox)).status_code == 200


def test_slow_reads_are_slow_on_top_of_the_latency_and_writes_are_not() -> None:
    weather = in_force({"slow_reads_s": 2, "latency": {"kind": "fixed", "delay_s": 1}})
    assert [weather.draw(writes=writes).delay_s for writes in (False, True)] == [3.0, 1.0]


async def test_a_slow_read_is_a_good_one(sandbox) -> None:
    sandbox.set_schedule({"slow_reads_s": 0.1})
    assert (await call(sandbox, "GET", READ, wait_s=0.03)).end == SILENCE
    assert (await call(sandbox, "GET", READ)).status_code == 200


def test_read_faults_take_no_draws_of_their_own() -> None:
    faults = {"error_503": 0.3, "slow": 0.3}
    assert names_drawn({"faults": faults}, 5) == names_drawn({"faults": faults, "read_faults": "hang*"}, 5)


async def test_a_hanging_outage_answers_nobody(sandbox) -> None:
    sandbox.add_outage({"mode": "hang", "duration_s": 60})
    assert (await charge(sandbox, wait_s=0.1)).end == SILENCE
    assert sandbox.ledger.effects() == 0


async def is_refused(sandbox) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_in_a_refusing_outage_nobody_listens_and_then_the_port_is_the_same(sandbox) -> None:
    port = sandbox.port
    sandbox.add_outage({"mode": "refuse", "duration_s": 0.5})
    await until(lambda: not sandbox.listening)
    assert await is_refused(sandbox)
    await until(lambda: sandbox.listening)
    assert sandbox.port == port
    assert (await charge(sandbox)).status_code == 200


async def test_a_refusing_outage_ends_idle_connections_too(sandbox) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.port)
    writer.write(request_bytes("GET", "/v1/charges", keep_alive=True))
    await read_response(reader)
    sandbox.add_outage({"mode": "refuse", "duration_s": 0.1})
    assert await reader.read() == b""
    writer.close()


async def test_a_busy_connection_is_answered_and_then_closed_by_a_refusing_outage(sandbox) -> None:
    running = asyncio.create_task(charge(sandbox, fault="slow(slow_s=0.3)", keep_alive=True))
    await until(lambda: sandbox.under_way == 1)
    sandbox.add_outage({"mode": "refuse", "duration_s": 60})
    await until(lambda: not sandbox.listening)
    seen = await running
    assert (seen.status_code, seen.end, seen.headers["connection"]) == (200, FIN, "close")


async def test_a_scheduled_refusal_begins_and_ends_by_itself(make_sandbox) -> None:
    outage = {"start_s": 0.1, "duration_s": 0.4, "mode": "refuse"}
    sandbox = await make_sandbox(schedule={"outages": [outage]})
    await until(lambda: not sandbox.listening)
    await until(lambda: sandbox.listening)


async def test_a_new_schedule_ends_a_refusal(sandbox) -> None:
    sandbox.add_outage({"mode": "refuse", "duration_s": 3600})
    await until(lambda: not sandbox.listening)
    sandbox.set_schedule({})
    await until(lambda: sandbox.listening)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"fault": {}}, "unknown: fault"),
        ({"faults": {"no_such": 0.5}}, "unknown fault"),
        ({"faults": {"slow": 0.6, "drip": 0.6}}, "at most 1"),
        ({"faults": {"slow": "often"}}, "slow is a number from 0 to 1"),
        ({"faults": [1]}, "faults is an object"),
        ({"latency": {"kind": "gamma"}}, "latency.kind is one of fixed"),
        ({"latency": {"kind": "uniform", "low_s": 1}}, "high_s is a number"),
        ({"outages": [{"mode": "refuse"}]}, "duration_s is a number"),
        ({"outages": [{"mode": "sulk", "duration_s": 1}]}, "unknown fault 'sulk'"),
        ({"outages": {}}, "outages is a list"),
        ({"brownouts": [{"duration_s": 1, "error_probability": 2}]}, "error_probability is a number"),
        ({"apply_to": "some"}, "apply_to is one of all, writes, reads"),
        ({"slow_reads_s": -1}, "slow_reads_s is a number"),
        ({"read_faults": "error_500*, -"}, "never ends"),
        ({"read_faults": {"sulk": 1}}, "unknown fault 'sulk'"),
        ({"read_faults": 5}, "read_faults is an object"),
        ({"seed": True}, "seed is a whole number"),
    ],
)
def test_a_bad_schedule_says_what_is_wrong(source, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_schedule(source, seed=1, defaults={})


async def test_outages_that_are_over_make_room_for_others() -> None:
    now = [0.0]
    weather = in_force({"outages": [{"duration_s": 1, "mode": "hang"}]}, clock=lambda: now[0])
    now[0] = 5.0
    weather.add_outage(parse_schedule({"outages": [{"duration_s": 2}]}, seed=1, defaults={}).outages[0])
    assert [(outage.start_s, outage.mode) for outage in weather.schedule.outages] == [(5.0, "refuse")]


async def test_arrivals_at_a_path_that_is_none_are_drawn_for_as_well(make_sandbox) -> None:
    sandbox = await make_sandbox(schedule={"faults": {"error_503": 1}})
    assert (await call(sandbox, "GET", "/v1/nothing")).status_code == 503
