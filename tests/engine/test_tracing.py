"""A caller's trace goes on: its headers reach the provider as they came, on every attempt, and its id is in the log."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress

import pytest

from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import make_world

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tracestate": "vendor=opaque,other=1"}


class Wire:
    """Stands between us and the provider, and keeps what we sent."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sent = b""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)

        async def up() -> None:
            while data := await reader.read(65536):
                self.sent += data
                ours.write(data)
            ours.close()

        async def down() -> None:
            with suppress(ConnectionError):
                while data := await theirs.read(65536):
                    writer.write(data)
            writer.close()

        await asyncio.gather(up(), down())


async def test_every_attempt_carries_the_trace_and_the_log_names_it(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire(int(sandbox.url.rpartition(":")[2]))
    async with await asyncio.start_server(wire.carry, "127.0.0.1", 0) as between:
        port = between.sockets[0].getsockname()[1]
        world = await make_world(sandbox, (f"upstream: {sandbox.url}", f"upstream: http://127.0.0.1:{port}"))
        caplog.set_level(logging.DEBUG, "paywitness.tests")
        reply = await world.charge(fault="drop_after_commit", headers=HEADERS)
        await close(world)
    assert (reply.status_code, world.effects(order="order-1")) == (200, 1)
    for name, value in HEADERS.items():
        assert re.findall(rb"(?i)\r\n%b: ([^\r]*)" % name.encode(), wire.sent) == [value.encode()] * 2
    (told,) = [record for record in caplog.records if record.getMessage() == "call_answered"]
    fields = told.__dict__["fields"]
    assert (fields["trace_id"], fields["operation_id"]) == (TRACE, reply.operation_id)
