"""Who may ask on the payment port about operations and intents: whoever may be shown a replay, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from paywitness.core.call import Call
from paywitness.core.credential_owners import AccountSource, CredentialRelation, may_see
from paywitness.core.reply import Reply
from tests.engine.world import World

OWN = {"Authorization": "Bearer test"}
OTHERS = {"Authorization": "Bearer another merchant"}


def question(headers: Mapping[str, str]) -> Call:
    pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
    return Call("paywitness", "GET", "/", "", (), pairs, b"")


async def paid(world: World, order: str, headers: Mapping[str, str] = OWN) -> str:
    body = {"amount": 1099, "currency": "EUR", "source": "tok_visa", "metadata": {"order_id": order}}
    reply = await world.post(
        "/v1/charges", body, {"Content-Type": "application/json", "Idempotency-Key": f"key {order}", **headers}
    )
    assert reply.status_code == 200
    assert reply.operation_id is not None
    return reply.operation_id


def told(reply: Reply) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(reply.body)
    return content


async def test_an_operation_is_told_to_the_credential_that_made_it_and_to_no_other(world: World) -> None:
    """S1: any pod could read all merchants' operations."""
    operation_id = await paid(world, "order-1")
    assert told(await world.engine.describe(operation_id, question(OWN)))["outcome"] == "succeeded"
    strangers: list[dict[str, str]] = [OTHERS, {}, {"X-Api-Key": "Bearer test"}, {**OWN, "X-Api-Key": "more"}]
    for stranger in strangers:
        hidden = await world.engine.describe(operation_id, question(stranger))
        unknown = await world.engine.describe("op_00000000000000000000000001", question(stranger))
        assert (hidden.status_code, hidden.body) == (404, unknown.body)  # nothing tells the two apart


async def test_an_intent_is_told_to_a_credential_of_its_account_and_to_no_other(world: World) -> None:
    """S1."""
    await paid(world, "order-1")
    assert told(await world.engine.describe_intent("order-1", None, None, question(OWN)))["safe_to_pay"] is False
    strangers: list[dict[str, str]] = [OTHERS, {}]
    for stranger in strangers:
        hidden = await world.engine.describe_intent("order-1", None, None, question(stranger))
        unknown = await world.engine.describe_intent("order-404", None, None, question(stranger))
        assert (hidden.status_code, hidden.body) == (404, unknown.body)
        assert "safe_to_pay" not in told(hidden)


async def test_a_known_credential_is_told_that_nothing_of_an_intent_is_known(world: World) -> None:
    await paid(world, "order-1")
    assert told(await world.engine.describe_intent("order-2", None, None, question(OWN)))["safe_to_pay"] is True


async def test_a_renewed_credential_is_told_once_the_provider_has_executed_a_call_of_it(world: World) -> None:
    operation_id = await paid(world, "order-1")
    assert (await world.engine.describe(operation_id, question(OTHERS))).status_code == 404
    await paid(world, "order-2", OTHERS)
    assert (await world.engine.describe(operation_id, question(OTHERS))).status_code == 200
    assert told(await world.engine.describe_intent("order-1", None, None, question(OTHERS)))["safe_to_pay"] is False


async def test_the_operators_read_sees_everything(world: World) -> None:
    await paid(world, "order-1")
    assert told(await world.engine.intents.describe("order-1"))["safe_to_pay"] is False


@pytest.mark.parametrize("separates", [True, False])
@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("source", AccountSource)
def test_what_may_be_seen(source: AccountSource, accepted: bool, separates: bool) -> None:
    def seen(relation: CredentialRelation) -> bool:
        return may_see(relation, accepted=accepted, source=source, separates=separates)

    assert seen(CredentialRelation.SAME)
    assert not seen(CredentialRelation.OTHER)
    by_acceptance = {
        AccountSource.HEADER: False,
        AccountSource.SELECTOR: accepted,
        AccountSource.CONSTANT: accepted and not separates,
    }
    assert seen(CredentialRelation.UNKNOWN) is by_acceptance[source]
