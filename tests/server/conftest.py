"""An edge on a real socket, with a carrier that is a fake world behind it. Every test here runs on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
import uvloop

from paywitness.clock import SystemClock
from paywitness.option_defaults import Unlisted
from paywitness.server.connect import InterceptConfig
from paywitness.server.connection import ServerConnection
from paywitness.server.limits_and_timeouts import ServerLimits
from paywitness.server.server import HttpServer
from paywitness.tasks import Tasks
from paywitness.transparent.local_ca import HostCertificates
from tests.server.fake_engine import FakeCarrier
from tests.server.proxy_client import AUTHORITY, Outside
from tests.server.raw_client import Caller

# Short enough to be waited for, long enough for a busy machine.
PATIENCE = ServerLimits(
    head_s=0.4, body_s=0.8, body_idle_s=0.4, keep_alive_s=0.4, reply_idle_s=0.4, linger_s=0.1, connections_max=64
)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def carrier() -> FakeCarrier:
    return FakeCarrier()


class Nowhere:
    """No tunnel leads anywhere."""

    async def connect(self, host: str, port: int, protocol: asyncio.Protocol) -> str | None:
        return "there is no outside here"

    def release(self, protocol: asyncio.Protocol) -> None:
        raise AssertionError("nobody was there")

    def is_own_connection(self, peer: tuple[Any, ...]) -> bool:
        return False


class Edge:
    """A running edge and the callers that were opened to it."""

    def __init__(self, server: HttpServer, address: tuple[str, int], carrier: FakeCarrier) -> None:
        self.server = server
        self.address = address
        self.carrier = carrier
        self.callers: list[Caller] = []

    async def caller(self) -> Caller:
        caller = await Caller.open(self.address)
        self.callers.append(caller)
        return caller

    @property
    def connection(self) -> ServerConnection:
        """The only one, once it has asked something."""
        (connection,) = self.server._registry.connections
        assert isinstance(connection, ServerConnection)
        return connection

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.server.counters.refused)

    @property
    def broken(self) -> dict[str, int]:
        return dict(self.server.counters.broken)


MakeEdge = Callable[..., Awaitable[Edge]]
MakeProxy = Callable[..., Awaitable[Edge]]


@pytest.fixture
async def make_edge(carrier: FakeCarrier) -> AsyncIterator[MakeEdge]:
    made: list[Edge] = []
    tasks = Tasks()

    async def make(
        limits: ServerLimits = ServerLimits(), provider: str | None = None, house: InterceptConfig | None = None
    ) -> Edge:
        server = HttpServer(carrier, limits)
        if house is None and provider is None:  # as in production, with nobody to vouch for and nowhere to go
            house = InterceptConfig(carrier.provider_at, lambda host: None, Nowhere(), Unlisted.REFUSE, tasks)
        edge = Edge(server, await server.start("127.0.0.1", 0, provider=provider, intercept=house), carrier)
        made.append(edge)
        return edge

    yield make
    for edge in made:
        for caller in edge.callers:
            caller.abort()
        carrier.release()
        await edge.server.close()
    await tasks.stop()


@pytest.fixture
async def edge(make_edge: MakeEdge) -> Edge:
    return await make_edge()


@pytest.fixture
async def impatient(make_edge: MakeEdge) -> Edge:
    return await make_edge(PATIENCE)


@pytest.fixture
async def outside() -> AsyncIterator[Outside]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"end")
            writer.write_eof()
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    found = Outside()
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()


@pytest.fixture
async def make_proxy(make_edge: MakeEdge, outside: Outside) -> AsyncIterator[MakeProxy]:
    tasks = Tasks()

    async def make(
        unlisted: Unlisted = Unlisted.REFUSE, limits: ServerLimits = ServerLimits(), *, certified: bool = True
    ) -> Edge:
        leaves = HostCertificates(lambda: AUTHORITY if certified else None, SystemClock())
        providers = {"api.acme.test": "acme", "api.globex.test": "globex"}
        house = InterceptConfig(providers.get, leaves.context_for, outside, unlisted, tasks)
        return await make_edge(limits, house=house)

    yield make
    await tasks.stop()


@pytest.fixture
async def proxy(make_proxy: MakeProxy) -> Edge:
    return await make_proxy()
