"""A bounded number of connections, first come first served, and no place is ever lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from paywitness.core.evidence import WireFault
from paywitness.core.policy import UpstreamTimeouts
from paywitness.upstream.client import UpstreamClient, UpstreamLimits
from tests.upstream.conftest import CHARGE, origin
from tests.upstream.peer import OK, PATIENCE_S, Peer, Provider, answer_all


class Gate:
    """A provider that answers one request each time it is let through."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.bodies: list[bytes] = []

    def __call__(self, peer: Peer) -> None:
        while request := peer.request():
            self.bodies.append(request.partition(b"\r\n\r\n")[2])
            self.arrived.release()
            self._permits.acquire(timeout=PATIENCE_S)
            peer.send(OK)

    def let_through(self, count: int = 1) -> None:
        self._permits.release(count)

    async def arrival(self) -> None:
        assert await asyncio.to_thread(self.arrived.acquire, timeout=PATIENCE_S)


async def test_those_who_wait_are_served_in_the_order_they_came() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=2))
    gate = Gate()
    with Provider(gate) as provider:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                request = replace(CHARGE, body=b"%d" % number)
                group.create_task(client.send(origin(provider.port), request, UpstreamTimeouts(connect_s=20.0)))
                if number < 2:
                    await gate.arrival()  # both connections are taken now, the rest waits
            for _ in range(6):
                gate.let_through()
                await gate.arrival()
            gate.let_through(2)
        assert len(provider.peers) == 2
        assert gate.bodies == [b"%d" % number for number in range(8)]
    await client.close()


async def test_a_waiter_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    class Steps:
        then: Callable[[], object] | None = None

        async def hit(self, name: str) -> None:
            if name == "upstream_answered" and self.then is not None:
                # It runs after the place was given back and before the one who got it wakes up.
                asyncio.get_running_loop().call_soon(self.then)
                self.then = None

    steps = Steps()
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1), at_failpoint=steps.hit)
    gate = Gate()
    with Provider(gate) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await gate.arrival()
            second = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            third = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await asyncio.sleep(0)
            steps.then = second.cancel
            gate.let_through(2)
        assert second.cancelled()
        assert third.result().complete
        assert third.result().reused_connection
        assert len(gate.bodies) == 2
        assert client._origin_pools[where]._busy == 0
    await client.close()


async def test_a_waiter_cancelled_before_its_turn_leaves_the_queue() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))
    gate = Gate()
    with Provider(gate) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await gate.arrival()
            second = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            third = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await asyncio.sleep(0)
            second.cancel()
            gate.let_through(2)
        assert third.result().complete
        assert len(gate.bodies) == 2
        assert client._origin_pools[where]._busy == 0
    await client.close()


async def test_a_queue_that_is_full_turns_away_at_once() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1, waiting_per_origin=1))
    gate = Gate()
    with Provider(gate) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await gate.arrival()
            group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await asyncio.sleep(0)
            turned_away = await client.send(where, CHARGE, UpstreamTimeouts(connect_s=60))
            assert turned_away.fault is WireFault.POOL_EXHAUSTED
            assert turned_away.duration_s < 30  # it waits for a connection no longer than a busy machine takes
            gate.let_through(2)
    await client.close()


async def test_those_who_gave_up_waiting_do_not_fill_the_queue() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1, waiting_per_origin=1))
    gate = Gate()
    with Provider(gate) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await gate.arrival()
            for _ in range(3):
                assert (
                    await client.send(where, CHARGE, UpstreamTimeouts(connect_s=0.02))
                ).fault is WireFault.POOL_EXHAUSTED
            patient = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            gate.let_through(2)
        assert patient.result().complete
    await client.close()


async def test_an_idle_connection_gives_way_to_a_call_that_wants_its_own() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))
    with Provider(answer_all) as provider:
        where = origin(provider.port)
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).complete
        own = await client.send(where, CHARGE, UpstreamTimeouts(), reuse=False)
        assert own.complete
        assert not own.reused_connection
        assert len(provider.peers) == 2
    await client.close()


async def test_the_connection_used_last_is_used_next(client: UpstreamClient) -> None:
    """So that the fewest stay warm, and none is used in the moment in which the provider tires of it."""
    releases = [threading.Event(), threading.Event()]

    def waits_once(peer: Peer) -> None:
        peer.request()
        releases[peer.number - 1].wait(PATIENCE_S)
        peer.send(OK)

    with Provider(waits_once, then=answer_all) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(client.send(where, CHARGE, UpstreamTimeouts())) for _ in range(2)]
            for release in releases:
                release.set()
                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                calls = [call for call in calls if not call.done()]
        assert (await client.send(where, CHARGE, UpstreamTimeouts())).reused_connection
        assert [len(peer.requests) for peer in provider.peers] == [1, 2]


async def test_a_waiter_that_wants_its_own_is_not_given_a_used_one() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))
    gate = Gate()
    with Provider(gate) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await gate.arrival()
            own = group.create_task(client.send(where, CHARGE, UpstreamTimeouts(), reuse=False))
            await asyncio.sleep(0)
            gate.let_through(2)
        assert own.result().complete
        assert not own.result().reused_connection
    await client.close()


async def test_a_failed_dial_passes_its_turn_on() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))
    with Provider(answer_all) as provider:
        port = provider.port
    calls = [client.send(origin(port), CHARGE, UpstreamTimeouts()) for _ in range(5)]  # nobody listens there any more
    faults = [evidence.fault for evidence in await asyncio.gather(*calls)]
    assert faults == [WireFault.CONNECT_REFUSED] * 5
    await client.close()


async def test_closing_sends_the_waiting_away_and_lets_the_rest_finish() -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=1))
    gate = Gate()
    with Provider(gate) as provider:
        where = origin(provider.port)
        async with asyncio.TaskGroup() as group:
            under_way = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await gate.arrival()
            waiting = group.create_task(client.send(where, CHARGE, UpstreamTimeouts()))
            await asyncio.sleep(0)
            await client.close()
            gate.let_through()
        assert waiting.result().fault is WireFault.POOL_EXHAUSTED
        assert under_way.result().complete
        assert await provider.ending() == "fin"


@pytest.mark.parametrize("calls", [200])
async def test_many_at_once_stay_within_the_bound(calls: int) -> None:
    client = UpstreamClient(bounds=UpstreamLimits(connections_per_origin=8))
    with Provider(answer_all) as provider:
        where = origin(provider.port)
        sent = await asyncio.gather(
            *(client.send(where, CHARGE, UpstreamTimeouts(connect_s=20.0)) for _ in range(calls))
        )
        assert all(evidence.complete for evidence in sent)
        assert len(provider.peers) <= 8
    await client.close()
