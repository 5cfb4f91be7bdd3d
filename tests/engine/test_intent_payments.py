"""Intents with payments behind them, read from a real store after real calls: what stands is what the ledger says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from paywitness.clock import SystemClock
from paywitness.core.call import CallerOptions
from paywitness.core.reply import Reply
from paywitness.journal.base import Journal
from paywitness.journal.redis.journal import RedisJournal
from paywitness.journal.sqlite.journal import SqliteJournal
from paywitness_sandbox.server import Sandbox
from tests.engine.conftest import close
from tests.engine.world import World, make_world
from tests.journal.redis_server import RedisServer

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer test"}


@pytest.fixture(scope="module")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis"])
async def world(sandbox: Sandbox, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    journal: Journal
    if request.param == "sqlite":
        journal = await SqliteJournal.open(tmp_path / "journal.db", clock=SystemClock())
    else:
        server: RedisServer = request.getfixturevalue("running_redis")
        journal = await RedisJournal.open(f"{server.url}?prefix={tmp_path.name}:", clock=SystemClock())
    built = await make_world(sandbox, journal=journal)
    yield built
    await close(built)


async def intent(world: World, order: str = "order-1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await world.engine.describe_intent(order, None, None)).body)
    return found


async def follow(world: World, reference: str, action: str, amount: int | None = None, **headers: str) -> Reply:
    body = {} if amount is None else {"amount": amount}
    key = {"Idempotency-Key": headers.pop("key", f"{action}-{amount}")}
    given = {**HEADERS, **key, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await world.post(f"/v1/charges/{reference}/{action}", body, given, CallerOptions())


async def authorised(world: World, amount: int = 10_000, order: str = "order-1") -> str:
    body = {
        "amount": amount,
        "currency": "EUR",
        "source": "tok_ok",
        "capture": False,
        "metadata": {"order_id": order},
    }
    reply = await world.post("/v1/charges", body, {**HEADERS, "Idempotency-Key": f"auth-{order}"}, CallerOptions())
    assert reply.status_code == 200, reply.body
    return str(json.loads(reply.body)["id"])


async def test_a_partly_refunded_purchase_is_not_free_and_says_what_stands(world: World) -> None:
    reference = str(json.loads((await world.charge(amount=2500)).body)["id"])
    assert (await follow(world, reference, "refunds", 1000)).status_code == 200
    told = await intent(world)
    [payment] = told["payments"]
    assert told["safe_to_pay"] is False
    [against] = told["why_not"]
    assert against["reason"] == "Paid: 25.00 EUR authorised, 25.00 captured, 10.00 refunded. 15.00 EUR stand."
    assert against["operation"] == payment["payment"] == payment["steps"][0]["operation"]
    assert told["explanation"].startswith(f"Payment {reference} at acme. Paid: 25.00 EUR authorised")
    assert "It may be paid again once" in told["explanation"]
    [refund] = payment["movements"]
    assert (refund["kind"], refund["status"], refund["outcome"]) == ("refund", "posted", "succeeded")
    assert (refund["amount"], refund["currency"], refund["posting"]) == ("10.00", "EUR", refund["operation"])
    assert (payment["stands"], payment["reserved"], payment["names"]) == ("15.00", {}, [reference])


async def test_after_a_full_refund_it_is_free_and_says_what_an_equal_call_gets(world: World) -> None:
    reference = str(json.loads((await world.charge(amount=2500)).body)["id"])
    await follow(world, reference, "refunds", 1000)
    await follow(world, reference, "refunds", 1500)
    told = await intent(world)
    assert (told["safe_to_pay"], told["why_not"]) == (True, [])
    assert "Refunded in full: an equal call gets 409 unless it says Paywitness-Distinct." in told["explanation"]
    repeated = await world.charge(key="key-2", amount=2500)
    assert json.loads(repeated.body)["type"].endswith(":refunded")
    assert (await world.charge(key="key-3", amount=2400)).status_code == 200
    assert world.effects() == 4  # charge, two refunds, charge
    assert (await intent(world))["safe_to_pay"] is False


async def test_a_void_of_the_rest_does_not_free_what_was_captured(world: World) -> None:
    reference = await authorised(world)
    assert (await follow(world, reference, "capture", 6000)).status_code == 200
    await follow(world, reference, "void")
    told = await intent(world)
    assert told["safe_to_pay"] is False
    assert "60.00 EUR stand." in told["why_not"][0]["reason"]


async def test_a_refund_in_doubt_is_reserved_and_named(world: World) -> None:
    reference = str(json.loads((await world.charge(amount=2500)).body)["id"])
    lost = await follow(world, reference, "refunds", 2500, Sandbox_Fault="drop_after_commit*")
    assert lost.status_code == 504
    told = await intent(world)
    assert told["safe_to_pay"] is False
    assert told["payments"][0]["reserved"] == {"refund": "25.00"}
    assert "A refund of 25.00 EUR is open: its end is not known yet." in told["why_not"][0]["reason"]


async def test_an_order_number_over_255_characters_is_found(world: World) -> None:
    order = "o" * 300
    await world.charge(amount=2500, order=order)
    told = await intent(world, order)
    assert (told["intent"], told["safe_to_pay"], len(told["operations"])) == (order, False, 1)
    assert (await intent(world, "o" * 200))["safe_to_pay"] is True
