"""The feed of outcomes and the page of an intent, on the admin port."""

from __future__ import annotations

import pytest

from paywitness.admin.server import AdminApi
from paywitness.core.lifecycle import Event
from paywitness.core.provider_contract import OperationKind
from tests.admin.conftest import Asker
from tests.admin.world import SECRETS, World


async def test_the_feed_tells_every_change_that_tells_something_in_order(world: World, ask: Asker) -> None:
    doubtful = await world.in_doubt()
    paid = await world.succeeded(client_key="b")
    await world.changed(doubtful, Event.INQUIRY_FOUND_SUCCESS)
    page = (await ask("/v1/outcomes")).json
    assert [(each["event"]["subject"], each["event"]["type"]) for each in page["outcomes"]] == [
        (doubtful.id, "paywitness.operation.doubt_opened"),
        (paid.id, "paywitness.operation.ended"),
        (doubtful.id, "paywitness.operation.ended"),
    ]
    numbers = [each["seq"] for each in page["outcomes"]]
    assert numbers == sorted(set(numbers))
    assert page["next"] == numbers[-1]
    rest = (await ask(f"/v1/outcomes?after={numbers[0]}&limit=1")).json
    assert ([each["seq"] for each in rest["outcomes"]], rest["next"]) == ([numbers[1]], numbers[1])
    assert (await ask(f"/v1/outcomes?after={numbers[-1]}")).json == {"outcomes": [], "next": numbers[-1]}


async def test_the_two_events_of_a_payouts_change_stand_under_one_number(world: World, ask: Asker) -> None:
    payout = await world.succeeded(kind=OperationKind.PAYOUT)
    outcomes = (await ask("/v1/outcomes?limit=2")).json["outcomes"]
    assert [each["event"]["type"] for each in outcomes] == [
        "paywitness.payout.reserved",
        "paywitness.operation.ended",
        "paywitness.payout.committed",
    ]
    assert outcomes[0]["seq"] < outcomes[1]["seq"] == outcomes[2]["seq"]
    assert {each["event"]["data"]["posting"]["key"] for each in outcomes} == {payout.id}


async def test_the_feed_holds_nothing_that_is_secret(world: World, ask: Asker) -> None:
    await world.in_review()
    await world.with_incident()
    text = (await ask("/v1/outcomes")).text
    for secret in ("canary", *SECRETS.values()):
        assert secret not in text


async def test_whoever_waits_hears_at_once_of_what_comes(world: World) -> None:
    api = AdminApi(world, world.clock)

    class Meanwhile:
        async def sleep(self, seconds: float) -> None:
            await world.clock.sleep(seconds)
            if world.clock.at < began + 3:
                await world.succeeded()

        def __getattr__(self, name: str) -> object:
            return getattr(world.clock, name)

    began = world.clock.at
    api._clock = Meanwhile()  # type: ignore[assignment]
    assert len(await api._outcomes(0, 10, 30)) == 1
    assert world.clock.at < began + 3


async def test_whoever_waits_in_vain_is_answered_in_the_end(world: World) -> None:
    began = world.clock.at
    assert await AdminApi(world, world.clock)._outcomes(0, 10, 30) == ()
    assert world.clock.at == began + 30


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("after=-1", "after is a number"),
        ("after=x", "after is a number"),
        ("limit=0", "limit is a number from 1 to 500"),
        ("wait_s=31", "wait_s is a number from 0 to 30"),
        ("since=1", "There is no parameter 'since'"),
    ],
)
async def test_a_question_that_is_not_understood_is_refused(ask: Asker, query: str, says: str) -> None:
    answer = await ask(f"/v1/outcomes?{query}")
    assert answer.status_code == 400
    assert says in answer.json["detail"]


async def test_an_intent_is_told_here_as_it_is_to_callers(world: World, ask: Asker) -> None:
    doubtful = await world.in_doubt()
    answer = await ask("/v1/intents/order-17")
    assert (answer.status_code, answer.json["safe_to_pay"]) == (200, False)
    assert answer.json["why_not"][0]["operation"] == doubtful.id
    assert (await ask("/v1/intents/2026/17")).json["intent"] == "2026/17"
    assert (await ask("/v1/intents/order-17?merchant=shop&provider=acme")).json["safe_to_pay"] is False
    assert (await ask("/v1/intents/order-17?merchant=nobody")).status_code == 404
    assert (await ask("/v1/intents/order-17?marchant=shop")).status_code == 400
    assert (await ask("/v1/intents/order-17", token=None)).status_code == 401
