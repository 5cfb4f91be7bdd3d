"""The page of an intent: whom it asks about, and what narrows it."""

from __future__ import annotations

import pytest

from tests.server.conftest import Edge
from tests.server.raw_client import get, request


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/paywitness/intents/order-17", ("order-17", None, None)),
        ("/paywitness/intents/2026/17", ("2026/17", None, None)),
        ("/paywitness/intents/order%20%C3%A9", ("order é", None, None)),
        ("/paywitness/intents/order-17?merchant=shop", ("order-17", "shop", None)),
        ("/paywitness/intents/order-17?provider=acme&merchant=a%20b", ("order-17", "a b", "acme")),
    ],
)
async def test_an_intent_is_described(edge: Edge, path: str, asked: tuple[str, str | None, str | None]) -> None:
    caller = await edge.caller()
    assert (await caller.ask(get(path), "GET")).status_code == 200
    assert edge.carrier.described_intents == [asked]


@pytest.mark.parametrize("query", ["marchant=shop", "merchant=a&merchant=b", "merchant=a&provider=b&c=d", "x"])
async def test_what_would_widen_the_answer_is_refused(edge: Edge, query: str) -> None:
    caller = await edge.caller()
    answer = await caller.ask(get(f"/paywitness/intents/order-17?{query}"), "GET")
    assert (answer.status_code, answer.problem) == (400, "malformed")
    assert edge.carrier.described_intents == []


@pytest.mark.parametrize(("method", "path"), [("POST", "/paywitness/intents/order-17"), ("GET", "/paywitness/intents")])
async def test_there_is_nothing_else_about_intents(edge: Edge, method: str, path: str) -> None:
    caller = await edge.caller()
    answer = await caller.ask(request(path, None, method=method), method)
    assert (answer.status_code, answer.problem) == (404, "not-found")
    assert "/paywitness/intents/{id}" in answer.json["detail"]


async def test_a_carrier_that_fails_is_no_word_that_paying_is_safe(edge: Edge) -> None:
    edge.carrier.error = RuntimeError("canary")
    caller = await edge.caller()
    answer = await caller.ask(get("/paywitness/intents/order-17"), "GET")
    assert (answer.status_code, answer.problem) == (504, "journal-unavailable")
    assert "safe_to_pay" not in answer.json
