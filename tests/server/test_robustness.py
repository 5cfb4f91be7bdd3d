"""Whatever is sent: every connection ends or is answered, others are served, and no error escapes."""

from __future__ import annotations

import asyncio
import logging
from io import BytesIO
from random import Random
from typing import Any, NoReturn

import httpx
import pytest
import requests
from aiohttp import ClientSession

from paywitness.engine.engine import Engine
from paywitness.server.engine_interface import CallHandler
from paywitness.server.request_parser import RequestParser
from tests.server.conftest import Edge, MakeEdge
from tests.server.raw_client import get, request, until
from tests.server.test_hostile import MALFORMED

SEEDS = [*MALFORMED.values(), request(), get("/"), request("/acme/v1/files", b"abc"), request() + request()]
BITS = [b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"%", b"//", b"http://", b"[", b"@", b"\xff", b"HTTP/1.1", b"0", b"?"]
BITS += [
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Paywitness-Key: a\r\n",
]


def mutated(chance: Random) -> bytes:
    data = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                data[place:place] = chance.choice(BITS)
            case 1:
                del data[place : place + chance.randint(1, 4)]
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
async def test_noise_is_answered_or_ended_and_disturbs_nobody(
    impatient: Edge, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    escaped: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: escaped.append(context))
    chance = Random(seed)

    async def one(data: bytes) -> None:
        caller = await impatient.caller()
        cut = chance.randrange(len(data) + 1)
        caller.send(data[:cut])
        await asyncio.sleep(0)
        caller.send(data[cut:])
        answers = await caller.rest()
        assert not answers or answers.startswith(b"HTTP/1.1 ")
        caller.close()

    for _ in range(4):
        await asyncio.gather(*(one(mutated(chance)) for _ in range(25)))
    assert (await (await impatient.caller()).ask(get("/"), "GET")).status_code == 200
    assert escaped == []
    assert caplog.records == []
    for call in impatient.carrier.calls:
        assert (call.provider, call.path[:1]) == ("acme", "/")


def explode(parser: RequestParser, data: bytes) -> NoReturn:
    """Fail in a way that a parser should not."""
    raise ValueError("canary")


async def test_a_parser_that_fails_is_the_requests_fault(make_edge: MakeEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = await make_edge(provider="acme")
    caller = await edge.caller()
    await until(lambda: edge.server.counters.connections_open == 1)
    monkeypatch.setattr(RequestParser, "feed", explode)
    assert (await caller.ask(request())).problem == "malformed"
    assert await caller.is_closed()


async def test_a_parser_that_fails_behind_a_request_does_not_spoil_its_answer(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(request())
    await edge.carrier.arrived.wait()
    connection = edge.connection
    monkeypatch.setattr(RequestParser, "feed", explode)
    caller.send(request())
    await until(lambda: connection._closes)
    edge.carrier.release()
    answer = await caller.answer()
    assert (answer.status_code, answer.header("Connection")) == (200, "close")
    assert await caller.rest() == b""


@pytest.mark.parametrize("client", ["requests", "httpx", "aiohttp"])
async def test_the_clients_that_people_use_are_served(edge: Edge, client: str) -> None:
    url = f"http://{edge.address[0]}:{edge.address[1]}/acme/v1/charges"
    large = b"x" * 3_000_000

    def with_requests() -> list[int]:
        with requests.Session() as session:
            return [session.post(url, data=body, timeout=10).status_code for body in (b"{}", large, b"{}")]

    def with_httpx() -> list[int]:
        with httpx.Client() as session:
            return [session.post(url, content=body).status_code for body in (b"{}", large, b"{}")]

    if client == "aiohttp":
        async with ClientSession() as session:
            seen = [(await session.post(url, data=BytesIO(body))).status for body in (b"{}", large, b"{}")]
    else:
        seen = await asyncio.to_thread(with_requests if client == "requests" else with_httpx)
    assert seen == [200, 413, 200]


def test_the_engine_is_a_carrier() -> None:
    """For the type checker: this does not run the engine."""

    def check(engine: Engine) -> CallHandler:
        return engine

    assert callable(check)
