"""Callers that leave, half or altogether, and what the engine is told of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.conftest import Edge
from tests.server.raw_client import Caller, get, request, until


async def held(edge: Edge, data: bytes = b"") -> Caller:
    """A caller whose call the engine has, and keeps."""
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(data or request())
    await edge.carrier.arrived.wait()
    return caller


def still_there(edge: Edge) -> bool:
    assert edge.carrier.still_there is not None
    return edge.carrier.still_there()


async def final_answer(caller: Caller) -> int:
    """Skips interim answers, as every caller must be able to."""
    while (status_code := (await caller.answer()).status_code) < 200:
        pass
    return status_code


async def test_a_caller_that_half_closes_gets_its_answer(edge: Edge) -> None:
    caller = await held(edge)
    caller.half_close()
    assert (await caller.head())[0] == 100  # sent to see whether it still reads
    assert still_there(edge)
    edge.carrier.release()
    assert await final_answer(caller) == 200
    assert await caller.rest() == b""


async def test_a_caller_that_half_closes_at_once_gets_its_answer(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(request())
    caller.half_close()
    assert await final_answer(caller) == 200
    assert await caller.rest() == b""


async def test_a_caller_that_half_closes_gets_the_answers_to_all_it_asked(edge: Edge) -> None:
    caller = await held(edge, request() + request() + request())
    caller.half_close()
    edge.carrier.release()
    assert [await final_answer(caller) for _ in range(3)] == [200, 200, 200]
    assert await caller.rest() == b""


@pytest.mark.parametrize("asked", [get("/acme/v1/files"), get("/"), get("/paywitness/intents/42")])
async def test_t7_a_caller_that_half_closes_and_does_not_pay_gets_its_answer_alone(edge: Edge, asked: bytes) -> None:
    """Some clients take an interim answer for the final one. Only a payment's caller must be probed."""
    edge.carrier.hold()
    caller = await edge.caller()
    caller.send(asked)
    caller.half_close()
    edge.carrier.release()
    assert (await caller.answer("GET")).status_code == 200
    assert await caller.rest() == b""


async def test_http_1_0_is_not_given_an_interim_answer(edge: Edge) -> None:
    caller = await held(edge, b"POST /acme/v1/charges HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    caller.half_close()
    edge.carrier.release()
    assert (await caller.answer()).status_code == 200


async def test_a_caller_that_closes_is_known_to_have_left(edge: Edge) -> None:
    """Its kernel ends our direction only when something is written to it."""
    caller = await held(edge)
    assert still_there(edge)
    caller.close()
    await until(lambda: not still_there(edge))
    edge.carrier.release()
    await until(lambda: edge.broken.get("caller-left") == 1)
    await until(lambda: edge.server.counters.connections_open == 0)


async def test_a_caller_that_resets_is_known_to_have_left(edge: Edge) -> None:
    caller = await held(edge)
    caller.reset()
    await until(lambda: not still_there(edge))


async def test_a_caller_that_leaves_cancels_nothing(edge: Edge) -> None:
    caller = await held(edge)
    caller.reset()
    await until(lambda: not still_there(edge))
    edge.carrier.release()
    await until(lambda: edge.carrier.answered == 1)
    assert not still_there(edge)


async def test_a_caller_that_was_answered_and_waits_is_still_there(edge: Edge) -> None:
    caller = await edge.caller()
    await caller.ask(request())
    assert still_there(edge)


async def test_a_caller_that_leaves_amid_its_body_reaches_nobody(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(b"POST /acme/v1/charges HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
    await until(lambda: edge.server.counters.requests == 1)
    caller.reset()
    await until(lambda: edge.broken.get("caller-left") == 1)
    assert edge.carrier.calls == []


@pytest.mark.parametrize("path", ["/acme/v1/charges", "/acme/v1/files"])
@pytest.mark.parametrize("framing", ["Content-Length: 100", "Transfer-Encoding: chunked"])
async def test_a_body_cut_short_is_never_taken_for_whole(edge: Edge, path: str, framing: str) -> None:
    caller = await edge.caller()
    caller.send(request(path, None, framing))
    await until(lambda: edge.server.counters.requests == 1)
    caller.half_close()
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (400, "malformed")
    assert edge.carrier.calls == []
    assert edge.carrier.answered == 0


async def test_a_head_cut_short_is_refused(edge: Edge) -> None:
    caller = await edge.caller()
    caller.send(b"POST /acme/v1/charges HTTP/1.1\r\nHost: a\r\n")
    caller.half_close()
    answer = await caller.answer()
    assert (answer.status_code, answer.problem) == (400, "malformed")


async def test_an_idle_caller_that_closes_is_let_go(edge: Edge) -> None:
    caller = await edge.caller()
    await caller.ask(get("/"), "GET")
    caller.half_close()
    assert await caller.rest() == b""
    silent = await edge.caller()
    silent.half_close()
    assert await silent.rest() == b""
    await until(lambda: edge.server.counters.connections_open == 0)


async def test_callers_that_leave_do_not_disturb_others(edge: Edge) -> None:
    stays = await held(edge)
    for _ in range(20):
        caller = await edge.caller()
        caller.send(request())
        caller.reset()
    edge.carrier.release()
    assert (await stays.answer()).status_code == 200
    await until(lambda: edge.server.counters.connections_open == 1)
    await asyncio.sleep(0)
    assert (await stays.ask(request())).status_code == 200
