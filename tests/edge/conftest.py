"""An edge on a real socket, with a carrier that is a fake world behind it. Every test here runs on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
import uvloop

from proxy.edge.limits import EdgeLimits
from proxy.edge.server import EdgeServer
from tests.edge.carrier import FakeCarrier
from tests.edge.talk import Caller

# Short enough to be waited for, long enough for a busy machine.
PATIENCE = EdgeLimits(
    head_s=0.4, body_s=0.8, body_idle_s=0.4, keep_alive_s=0.4, answer_idle_s=0.4, linger_s=0.1, connections_max=64
)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def carrier() -> FakeCarrier:
    return FakeCarrier()


class Edge:
    """A running edge and the callers that were opened to it."""

    def __init__(self, server: EdgeServer, address: tuple[str, int], carrier: FakeCarrier) -> None:
        self.server = server
        self.address = address
        self.carrier = carrier
        self.callers: list[Caller] = []

    async def caller(self) -> Caller:
        caller = await Caller.open(self.address)
        self.callers.append(caller)
        return caller

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.server.counters.refused)

    @property
    def broken(self) -> dict[str, int]:
        return dict(self.server.counters.broken)


MakeEdge = Callable[..., Awaitable[Edge]]


@pytest.fixture
async def make_edge(carrier: FakeCarrier) -> AsyncIterator[MakeEdge]:
    made: list[Edge] = []

    async def make(limits: EdgeLimits = EdgeLimits(), provider: str | None = None) -> Edge:
        server = EdgeServer(carrier, limits)
        edge = Edge(server, await server.start("127.0.0.1", 0, provider=provider), carrier)
        made.append(edge)
        return edge

    yield make
    for edge in made:
        for caller in edge.callers:
            caller.abort()
        carrier.release()
        await edge.server.close()


@pytest.fixture
async def edge(make_edge: MakeEdge) -> Edge:
    return await make_edge()


@pytest.fixture
async def impatient(make_edge: MakeEdge) -> Edge:
    return await make_edge(PATIENCE)
