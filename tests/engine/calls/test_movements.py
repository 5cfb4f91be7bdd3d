"""Captures of one payment, one after the other: the second waits for the first and is told how it ended itself."""

from __future__ import annotations

import asyncio
import json

from paywitness.core.call import CallerOptions
from paywitness_sandbox.server import Sandbox
from tests.engine.world import World, header, make_world, outcome, until


async def authorise(world: World, amount: int = 1000) -> str:
    body = {"amount": amount, "currency": "EUR", "capture": False, "metadata": {"order_id": "order-1"}}
    reply = await world.post("/v1/charges", body, _headers("authorize"))
    return str(json.loads(reply.body)["id"])


def _headers(key: str, fault: str = "") -> dict[str, str]:
    given = {"Content-Type": "application/json", "Authorization": "Bearer test", "Idempotency-Key": key}
    return {**given, "Sandbox-Fault": fault} if fault else given


async def test_a_capture_that_waited_for_another_is_sent_once_and_told_its_own_response(sandbox: Sandbox) -> None:
    """It was claimed once more after its success: a replay here, and over Redis a fault that was told as 504."""
    world = await make_world(sandbox)
    charge = await authorise(world)

    def capture(key: str, amount: int, fault: str = "") -> asyncio.Future:
        body = {"amount": amount, "final": False}
        call = world.post(f"/v1/charges/{charge}/capture", body, _headers(key, fault), CallerOptions(timeout_s=10.0))
        return asyncio.ensure_future(call)

    first = capture("first", 300, "slow(slow_s=0.3)")
    await until(lambda: any(arrival.key == "first" for arrival in world.arrivals))
    others = [capture(f"other-{amount}", amount) for amount in (100, 200)]
    replies = await asyncio.gather(first, *others)
    assert [(reply.status_code, outcome(reply)) for reply in replies] == [(200, "succeeded")] * 3
    assert [header(reply, "Paywitness-Replayed") for reply in replies] == [None] * 3
    assert sorted(json.loads(reply.body)["capture"]["amount"] for reply in replies) == [100, 200, 300]
    assert [world.effects(key=key) for key in ("first", "other-100", "other-200")] == [1, 1, 1]
