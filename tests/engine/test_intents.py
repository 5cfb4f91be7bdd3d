"""Whether a purchase may be paid: never while anything of it is, or could become, a payment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paywitness.core.lifecycle import Event
from paywitness.core.operation import Guard, GuardKind, Operation, State
from paywitness.core.reply import Reply
from paywitness.core.result import ResultClass
from paywitness.engine.intents import IntentView, intent_status, unsafe_reason
from tests.admin.world import World
from tests.telemetry.samples import operation as some_operation


def of(reply: Reply) -> dict[str, Any]:
    return json.loads(reply.body)


def bearing(state: State, intent: str = "order-17", **changes: Any) -> Operation:
    return some_operation(state, guard=Guard(GuardKind.INTENT, "hash", intent), **changes)


SAFE = [
    bearing(State.FAILED, result_class=ResultClass.ISSUER_HARD_DECLINE),
    bearing(State.FAILED, result_class=ResultClass.ABSENT),
    bearing(State.FAILED),
    bearing(State.SUCCEEDED, result_class=ResultClass.REVERSED),
]
UNSAFE = [
    *(bearing(state) for state in State if state is not State.FAILED),
    bearing(State.FAILED, incident="success_after_failure"),
    bearing(State.SUCCEEDED, result_class=ResultClass.REVERSED, incident="two_references"),
    bearing(State.REQUIRES_ACTION, due_at=None),
]


@pytest.mark.parametrize("operation", SAFE, ids=lambda operation: f"{operation.state}-{operation.result_class}")
def test_what_ended_without_a_payment_speaks_against_nothing(operation: Operation) -> None:
    told = intent_status(IntentView("order-17", (operation,)))
    assert (told["safe_to_pay"], told["why_not"], told["note"]) == (True, [], None)
    assert [each["operation"] for each in told["operations"]] == [operation.id]


@pytest.mark.parametrize("operation", UNSAFE, ids=lambda operation: f"{operation.state}-{operation.incident}")
def test_what_is_or_may_become_a_payment_speaks_against_another(operation: Operation) -> None:
    told = intent_status(IntentView("order-17", (operation, *SAFE)))
    assert told["safe_to_pay"] is False
    [against] = told["why_not"]
    assert against == {
        "operation": operation.id,
        "provider": "acme",
        "state": operation.state,
        "outcome": operation.outcome,
        "reason": unsafe_reason(operation),
    }


async def test_only_operations_of_the_intent_count() -> None:
    world = World()
    await world.in_doubt(guard=Guard(GuardKind.INTENT, "hash-1", "order-18"))
    await world.in_doubt(guard=Guard(GuardKind.TARGET, "hash-2", "order-17"))
    await world.in_doubt(guard=None)
    told = of(await world.intents.describe("order-17"))
    assert (told["safe_to_pay"], told["operations"]) == (True, [])
    assert "knows no payment of this intent" in told["note"]


def test_where_not_all_were_looked_at_it_is_not_safe() -> None:
    told = intent_status(IntentView("order-17", tuple(SAFE), complete=False))
    assert told["safe_to_pay"] is False
    assert "not all were read" in told["note"]


# --- read from a journal


async def test_an_intent_is_read_from_the_journal() -> None:
    world = World()
    declined = await world.declined()
    assert of(await world.intents.describe("order-17"))["safe_to_pay"] is True
    doubtful = await world.in_doubt()
    reply = await world.intents.describe("order-17")
    told = of(reply)
    assert (reply.status_code, told["intent"], told["safe_to_pay"]) == (200, "order-17", False)
    assert [against["operation"] for against in told["why_not"]] == [doubtful.id]
    assert {each["operation"] for each in told["operations"]} == {declined.id, doubtful.id}
    await world.changed(doubtful, Event.INQUIRY_FOUND_DENIAL)
    assert of(await world.intents.describe("order-17"))["safe_to_pay"] is True


async def test_an_unknown_intent_is_safe_as_far_as_this_journal_knows() -> None:
    reply = await World().intents.describe("order-404")
    told = of(reply)
    assert (reply.status_code, told["safe_to_pay"], told["operations"]) == (200, True, [])
    assert told["note"].startswith("This journal knows no payment of this intent")


async def test_merchant_and_provider_narrow_it() -> None:
    world = World()
    await world.in_doubt(provider="globex")
    assert of(await world.intents.describe("order-17"))["safe_to_pay"] is False
    assert of(await world.intents.describe("order-17", merchant="shop"))["safe_to_pay"] is True
    assert of(await world.intents.describe("order-17", provider="acme"))["safe_to_pay"] is True


async def test_more_than_can_be_looked_at_is_not_safe_until_it_is_narrowed() -> None:
    world = World()
    for number in range(201):
        await world.declined(client_key=f"key-{number}", provider="globex")
    told = of(await world.intents.describe("order-17"))
    assert (told["safe_to_pay"], told["why_not"]) == (False, [])
    assert "Narrow it by provider" in told["note"]
    assert of(await world.intents.describe("order-17", provider="acme"))["safe_to_pay"] is True


@pytest.mark.parametrize(
    "narrowed", [{"merchant": "sohp"}, {"provider": "acmee"}, {"merchant": "x", "provider": "acme"}]
)
async def test_a_name_that_nobody_bears_is_no_word_that_paying_is_safe(narrowed: dict[str, str]) -> None:
    world = World()
    await world.in_doubt()
    reply = await world.intents.describe("order-17", narrowed.get("merchant"), narrowed.get("provider"))
    assert reply.status_code == 404
    assert "safe_to_pay" not in of(reply)


async def test_a_journal_that_does_not_answer_is_no_word_that_paying_is_safe() -> None:
    world = World()
    await world.memory.close()
    reply = await world.intents.describe("order-17")
    assert (reply.status_code, reply.problem) == (504, "journal-unavailable")
