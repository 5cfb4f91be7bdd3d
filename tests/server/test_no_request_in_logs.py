"""Nothing of a request is ever logged or printed, however it goes wrong."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.server.conftest import Edge
from tests.server.raw_client import request, until
from tests.server.test_hostile import CHUNKED, HOST, LINE

CANARY = b"sk_live_canary"
SECRET = b"Authorization: Bearer " + CANARY + b"\r\n"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]):
    """Everything that any logger, the event loop or a stray print has said."""
    caplog.set_level(logging.DEBUG)

    def read() -> str:
        captured = capfd.readouterr()
        return caplog.text + captured.out + captured.err

    return read


@pytest.mark.parametrize(
    "data",
    [
        LINE + HOST + b"Authorization : Bearer " + CANARY + b"\r\n\r\n",
        LINE + HOST + b"Authorization: Bearer " + CANARY + b"\0\r\n\r\n",
        LINE + HOST + b"Authorization: Bearer\r\n " + CANARY + b"\r\n\r\n",
        LINE + HOST + SECRET + b"Content-Length: " + CANARY + b"\r\n\r\n",
        LINE + HOST + SECRET + b"X: " + CANARY * 1000 + b"\r\n\r\n",
        LINE + HOST + SECRET + b"Paywitness-Priority: " + CANARY + b"\r\n\r\n",
        CANARY + b" /acme HTTP/1.1\r\n" + SECRET + b"\r\n",
        b"GET /acme/" + CANARY + b"\x01 HTTP/1.1\r\n" + HOST + SECRET + b"\r\n",
        b"GET /acme/v1/%zz" + CANARY + b" HTTP/1.1\r\n" + HOST + SECRET + b"\r\n",
        b"GET http://" + CANARY + b":port/ HTTP/1.1\r\n" + HOST + SECRET + b"\r\n",
        b"GET http://[" + CANARY + b"/ HTTP/1.1\r\n" + HOST + SECRET + b"\r\n",
        CHUNKED.replace(HOST, HOST + SECRET) + CANARY + b"\r\n",
    ],
)
async def test_what_cannot_be_parsed_is_not_logged(edge: Edge, data: bytes, said) -> None:
    caller = await edge.caller()
    answer = await caller.ask(data)
    assert 400 <= answer.status_code < 500
    caller.abort()
    await edge.server.close()
    assert CANARY.decode() not in said()


async def test_what_breaks_half_way_is_not_logged(edge: Edge, said) -> None:
    caller = await edge.caller()
    caller.send(CHUNKED.replace(HOST, HOST + SECRET) + b"e\r\n" + CANARY + b"\r\n")
    await until(lambda: edge.server.counters.requests == 1)
    await caller.ask(CANARY + b"\r\n")
    await edge.server.close()
    assert CANARY.decode() not in said()


async def test_an_engine_that_fails_is_named_by_class_and_place_alone(edge: Edge, said) -> None:
    edge.carrier.error = RuntimeError(CANARY.decode())
    caller = await edge.caller()
    for path in ("/acme/v1/charges", "/acme/v1/files", "/paywitness/operations/x"):
        await caller.ask(request(path, None, SECRET.decode().strip(), method="GET"))
    caller.abort()
    await edge.server.close()
    text = said()
    assert CANARY.decode() not in text
    assert text.count("RuntimeError at fake_engine.py:") == 3


async def test_callers_that_leave_are_not_worth_a_line(edge: Edge, said) -> None:
    for data in (LINE, LINE + HOST + SECRET + b"Content-Length: 10\r\n\r\n" + CANARY[:5], request()):
        caller = await edge.caller()
        caller.send(data)
        caller.reset()
    await asyncio.sleep(0)
    await until(lambda: edge.server.counters.connections_open == 0)
    await edge.server.close()
    assert "paywitness" not in said()
