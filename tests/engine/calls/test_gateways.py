"""What stands between us and the provider: gateways that answer in its place, and connections that it closes when idle.
The real engine over a real socket; the provider's ledger is the judge."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from paywitness.core.operation import State
from paywitness.journal.base import OperationQuery
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.storm import WITHOUT_KEYS
from tests.engine.world import World, make_world, outcome, problem_type

Answer = Callable[[dict[str, Any]], bytes]


@dataclass
class ScriptedProvider:
    """Executes every POST that it reads whole, and answers as it is told."""

    answer: Answer
    closes_on_reuse: bool = False
    executed: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
                if head.startswith("get"):
                    writer.write(http(503, b"{}"))
                    continue
                length = int(head.partition("content-length:")[2].partition("\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                self.executed[body["metadata"]["order_id"]] += 1
                writer.write(self.answer(body))
                await writer.drain()
                if self.closes_on_reuse:
                    await reader.readexactly(1)  # the next request begins, and our close crosses it
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


def http(status_code: int, body: bytes, *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status_code} X", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def paid(body: dict[str, Any]) -> bytes:
    charge = {"id": "ch_" + body["metadata"]["order_id"], "status": "succeeded"}
    return http(200, json.dumps({**charge, "amount": body["amount"], "currency": body["currency"]}).encode())


@asynccontextmanager
async def world_of(provider: ScriptedProvider, *edits: tuple[str, str]) -> AsyncIterator[World]:
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    world = await make_world(cast("Sandbox", provider), *edits)
    try:
        yield world
    finally:
        await close(world)
        server.close()


PAGE = b"<html>blocked</html>"


@pytest.mark.parametrize("header", ["Content-Type: text/html", "X-Type: none"])
@pytest.mark.parametrize("status_code", [200, 400, 402, 403, 404, 429, 500, 502])
async def test_a_gateways_page_is_doubt_and_its_key_pays_nothing_again(status_code: int, header: str) -> None:
    """P38: the provider executed it; the page is of somebody in front of it."""
    provider = ScriptedProvider(lambda body: http(status_code, PAGE, header))
    async with world_of(provider, *WITHOUT_KEYS) as world:
        for _ in range(2):
            reply = await world.charge("key-1", order="o-1", timeout_s=0.4)
            assert (reply.status_code, problem_type(reply), outcome(reply)) == (504, "unknown", "unknown")
        fresh = await world.charge("key-2", order="o-1", timeout_s=0.4)
        assert fresh.status_code == 504
        assert provider.executed["o-1"] == 1


@pytest.mark.parametrize("status_code", [301, 302, 303, 304, 307, 308])
async def test_a_redirect_in_doubt_is_not_handed_on(status_code: int) -> None:
    """Its client would follow it, past the journal."""
    provider = ScriptedProvider(lambda body: http(status_code, b"", "Location: /v1/charges"))
    async with world_of(provider, *WITHOUT_KEYS) as world:
        reply = await world.charge("key-1", order="o-1", timeout_s=0.4)
        assert (reply.status_code, outcome(reply)) == (504, "unknown")
        assert all(name.lower() != b"location" for name, _ in reply.headers)
        assert provider.executed["o-1"] == 1


@pytest.mark.parametrize("errors", ["not_stored", "unknown"])
async def test_what_may_not_be_sent_again_never_meets_an_idle_close(errors: str) -> None:
    provider = ScriptedProvider(paid, closes_on_reuse=True)
    async with world_of(provider, ("errors_under_key: replayed ", f"errors_under_key: {errors} ")) as world:
        for number in range(4):
            reply = await world.charge(f"key-{number}", order=f"o-{number}")
            assert (reply.status_code, outcome(reply)) == (200, "succeeded")
        assert (provider.connections, provider.executed.total()) == (4, 4)


@pytest.mark.parametrize(("connections", "opened"), [("auto", 1), ("reuse", 1), ("fresh", 4)])
async def test_a_policy_says_which_connections_are_used(connections: str, opened: int) -> None:
    provider = ScriptedProvider(paid)
    async with world_of(
        provider, ("\nunmatched: forward", f"\nconnections: {connections}\nunmatched: forward")
    ) as world:
        for number in range(4):
            assert (await world.charge(f"key-{number}", order=f"o-{number}")).status_code == 200
        assert provider.connections == opened
        found = await world.journal.find_operations(OperationQuery())
        assert {operation.state for operation in found} == {State.SUCCEEDED}
