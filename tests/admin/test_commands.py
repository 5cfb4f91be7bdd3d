"""What an operator does over HTTP: offered, done, refused with what is true now; one by one and many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paywitness.core.lifecycle import Event
from paywitness.core.operation import Guard, GuardKind, Operation, State
from paywitness.core.operator_actions import OperatorAction
from paywitness.engine.operator_commands import OperatorCommand
from paywitness.journal.base import OperationChange
from tests.admin.conftest import Answer, Asker
from tests.admin.world import CARD, TOKEN, World

WHO = {"actor": "ada", "reason": "ticket 4711"}
EVIDENCE = "Acme's dashboard shows ch_9 captured"


class Orders:
    def __init__(self, ask: Asker) -> None:
        self._ask = ask

    async def __call__(self, path: str, token: str | None = TOKEN, **members: Any) -> Answer:
        return await self._ask(path, method="POST", token=token, json={**WHO, **members})


@pytest.fixture
def act(ask: Asker) -> Orders:
    return Orders(ask)


async def test_an_operation_says_what_may_be_done_with_it(world: World, ask: Asker) -> None:
    doubtful, paid = await world.in_doubt(), await world.succeeded(reference="ch_1")
    assert (await ask(f"/v1/operations/{doubtful.id}")).json["actions"] == ["inquire", "park", "resolve", "cancel"]
    found = (await ask(f"/v1/operations/{paid.id}")).json
    assert (found["actions"], found["contradiction"]) == ([], None)
    assert found["dashboard"] == "https://dashboard.acme.test/payments/ch_1"


async def test_an_action_answers_with_what_is_now_true(world: World, act: Orders) -> None:
    operation = await world.in_doubt()
    found = (await act(f"/v1/operations/{operation.id}/park", version=operation.version)).json
    assert (found["state"], found["version"], found["actions"]) == (
        "requires_review",
        operation.version + 1,
        ["inquire", "resume", "resolve", "cancel"],
    )
    last = found["timeline"][-1]
    assert (last["source"], last["actor"], last["note"]) == ("operator", "ada", "ticket 4711")
    assert (last["events"], last["told"]) == (["operator_parked"], ["review_opened"])


async def test_a_resolution_shows_its_evidence(world: World, act: Orders) -> None:
    operation = await world.in_review()
    evidence = {"as": "succeeded", "evidence": f"{EVIDENCE}, card {CARD}", "reference": "ch_9"}
    found = (await act(f"/v1/operations/{operation.id}/resolve", **evidence)).json
    assert (found["verdict"], found["reference"]) == ("SUCCEEDED: 12.50 EUR was authorised", "ch_9")
    assert found["timeline"][-1]["finding"] == {
        "source": "operator",
        "found": "hit",
        "status_code": None,
        "reading": "succeeded",
        "effect": "done",
        "rule": "operator",
        "reference": "ch_9",
        "shown_amount": None,
        "detail": f"{EVIDENCE}, card ***",
    }


@pytest.mark.parametrize("token", [None, "wrong"])
@pytest.mark.parametrize("path", ["/v1/operations/op_00000000000000000000000001/park", "/v1/review/park"])
async def test_nobody_acts_without_the_token(world: World, act: Orders, path: str, token: str | None) -> None:
    operation = await world.in_doubt()
    assert (await act(path, token=token)).status_code == 401
    assert await world.journal.read(operation.id) == operation


@pytest.mark.parametrize(
    ("action", "members", "says"),
    [
        ("park", {"reason": ""}, "Say why"),
        ("park", {"reason": 7}, "reason is a text"),
        ("park", {"actor": ""}, "Say who does it"),
        ("park", {"amount": "1.00"}, "There is no member 'amount' in this command"),
        ("park", {"version": "2"}, "version is a whole number"),
        ("park", {"version": True}, "version is a whole number"),
        ("resolve", {"as": "paid", "evidence": EVIDENCE}, "as is succeeded or failed"),
        ("resolve", {"as": "succeeded"}, "Only evidence ends a doubt"),
        ("resolve", {"evidence": EVIDENCE}, "as is succeeded or failed"),
    ],
)
async def test_an_order_that_is_not_whole_is_400_and_does_nothing(
    world: World, act: Orders, action: str, members: dict[str, Any], says: str
) -> None:
    operation = await world.in_doubt()
    answer = await act(f"/v1/operations/{operation.id}/{action}", **members)
    assert (answer.status_code, answer.json["type"]) == (400, "urn:paywitness:problem:invalid-command")
    assert answer.json["formerly"] == "urn:paywitness:problem:unfit-order"
    assert says in answer.json["detail"]
    assert await world.journal.read(operation.id) == operation


async def test_a_body_that_is_no_object_is_400(world: World, ask: Asker) -> None:
    operation = await world.in_doubt()
    bodies: list[Any] = [[], "park", 1, None]
    for body in bodies:
        answer = await ask(f"/v1/operations/{operation.id}/park", method="POST", json=body)
        assert (answer.status_code, answer.json["type"]) == (400, "urn:paywitness:problem:invalid-command")


async def test_what_is_not_there_is_404(act: Orders) -> None:
    assert (await act("/v1/operations/op_404/park")).status_code == 404
    answer = await act("/v1/operations/op_404/refund")
    assert answer.status_code == 404
    assert "Actions: inquire, park, resume, resolve, cancel, close-incident." in answer.json["detail"]


async def test_what_is_not_offered_is_409_and_says_what_is(world: World, act: Orders) -> None:
    operation = await world.succeeded()
    answer = await act(f"/v1/operations/{operation.id}/resolve", **{"as": "failed"}, evidence=EVIDENCE)
    assert (answer.status_code, answer.json["type"]) == (409, "urn:paywitness:problem:not-offered")
    assert answer.json["detail"] == (
        "Not done: it has ended as succeeded; an end is never overwritten. Allowed now: nothing."
    )
    assert (answer.json["state"], answer.json["offered"]) == ("succeeded", [])


async def test_of_two_who_resolve_the_same_at_once_one_wins_and_the_other_is_told(world: World, act: Orders) -> None:
    operation = await world.in_review()
    answers = await asyncio.gather(
        *(
            act(
                f"/v1/operations/{operation.id}/resolve",
                version=operation.version,
                evidence=EVIDENCE,
                actor=who,
                **{"as": end},
            )
            for who, end in (("ada", "succeeded"), ("bob", "failed"))
        )
    )
    [won] = [answer for answer in answers if answer.status_code == 200]
    [lost] = [answer for answer in answers if answer.status_code == 409]
    after = await world.journal.read(operation.id)
    assert after is not None
    assert (won.json["state"], after.version, after.incident) == (after.state, operation.version + 1, None)
    assert lost.json["type"] == "urn:paywitness:problem:overtaken"
    winner = "ada" if after.state is State.SUCCEEDED else "bob"
    assert (lost.json["by"], lost.json["state"], lost.json["version"]) == (winner, after.state, after.version)
    assert f"by {winner} (operator): operator found" in lost.json["detail"]


async def test_a_webhook_that_was_faster_is_told_to_the_operator(world: World, act: Orders) -> None:
    operation = await world.in_doubt()
    await world.changed(operation, Event.WEBHOOK_TOLD_SUCCESS)
    answer = await act(
        f"/v1/operations/{operation.id}/resolve", version=operation.version, evidence=EVIDENCE, **{"as": "failed"}
    )
    assert (answer.status_code, answer.json["by"], answer.json["outcome"]) == (409, "webhook", "succeeded")


async def test_a_journal_that_does_not_answer_leaves_the_operator_in_no_false_certainty(
    world: World, act: Orders
) -> None:
    await world.memory.close()
    answer = await act("/v1/operations/op_1/park")
    assert answer.status_code == 503
    assert "unknown whether the command was recorded" in answer.json["detail"]


# --- lists


async def test_review_and_incidents_are_lists_of_their_own(world: World, ask: Asker) -> None:
    parked, disputed = (
        await world.in_review(client_key="a"),
        await world.with_incident(client_key="b", reference="ch_1"),
    )
    await world.in_doubt()
    assert [row["id"] for row in (await ask("/v1/review")).json["operations"]] == [parked.id]
    assert (await ask("/v1/review?key=b")).json["operations"] == []
    [row] = (await ask("/v1/incidents")).json["operations"]
    assert (row["id"], row["incident"]) == (disputed.id, "success_after_failure")
    assert "void ch_1 (12.50 EUR) at acme" in row["proposal"]
    assert (await ask("/v1/incidents?limt=1")).status_code == 400


async def test_an_incident_shows_both_pieces_of_evidence(world: World, ask: Asker) -> None:
    operation = await world.with_incident(reference="ch_1")
    await world.review.execute(operation.id, _closing())
    disputed = await world.changed(
        await _read(world, operation.id), Event.INQUIRY_FOUND_SUCCESS, incident="success_after_failure"
    )
    found = (await ask(f"/v1/operations/{disputed.id}")).json
    told = found["contradiction"]
    assert told["kind"] == "success_after_failure"
    assert told["stood_by"]["events"] == ["denial_seen"]
    assert told["stood_by"]["attempt"]["status_code"] == 402
    assert told["contradicted_by"]["events"] == ["inquiry_found_success"]
    assert told["dashboard"] == "https://dashboard.acme.test/payments/ch_1"
    assert told["proposal"] == found["proposal"]
    assert told["other_payment"] is None


async def test_a_duplicate_names_the_other_payment(world: World, ask: Asker) -> None:
    guard = Guard(GuardKind.INTENT, "canary-guard-hash", "order-17")
    first = await world.abandoned(guard=guard, reference="ch_1", client_key="a")
    second = await world.abandoned(guard=guard, reference="ch_2", client_key="b")
    await world.changed(first, Event.WEBHOOK_TOLD_SUCCESS)
    await world.changed(second, Event.WEBHOOK_TOLD_SUCCESS)
    found = (await ask(f"/v1/operations/{second.id}")).json
    assert found["incident"] == "duplicate_success"
    assert found["contradiction"]["other_payment"]["id"] == first.id
    assert (
        f"order-17 was made twice, already by ch_1 (12.50 EUR) at acme, operation {first.id}: void ch_2"
        in found["proposal"]
    )
    other: dict[str, Any] = {"operation": first.id, "provider": "acme", "reference": "ch_1"}
    other |= {"amount": "12.50", "currency": "EUR", "minor_units": 1250}
    assert found["other_payment"] == other
    [listed] = (await ask("/v1/incidents")).json["operations"]
    assert (listed["other_payment"], listed["proposal"]) == (other, found["proposal"])


async def test_a_duplicate_of_an_older_journal_is_listed_with_the_other_payment(world: World, ask: Asker) -> None:
    guard = Guard(GuardKind.INTENT, "canary-guard-hash", "order-17")
    first = await world.abandoned(guard=guard, reference="ch_1", client_key="a")
    second = await world.abandoned(guard=guard, reference="ch_2", client_key="b")
    await world.changed(first, Event.WEBHOOK_TOLD_SUCCESS)
    disputed = await world.changed(second, Event.WEBHOOK_TOLD_SUCCESS)
    await world.memory.record(OperationChange(disputed.changed(other_payment=None), ()))
    [listed] = (await ask("/v1/incidents")).json["operations"]
    assert f"ch_1 (12.50 EUR) at acme, operation {first.id}" in listed["proposal"]
    assert listed["other_payment"]["operation"] == first.id


async def test_customers_who_never_came_back_leave_the_lists_but_are_found(world: World, ask: Asker) -> None:
    gone = [await world.abandoned(client_key=f"gone-{number}") for number in range(7)]
    paid = await world.succeeded(client_key="paid")
    waiting = await world.abandoned(client_key="waiting")
    await world.review.execute(waiting.id, _inquiring())  # somebody looks at it: it is due
    newest = await world.abandoned(client_key="newest")

    async def ids(query: str) -> list[str]:
        return [row["id"] for row in (await ask(f"/v1/operations?{query}")).json["operations"]]

    assert await ids("") == [waiting.id, paid.id]
    assert await ids("provider=acme&limit=1") == [waiting.id]
    assert await ids("state=requires_action") == [newest.id, waiting.id, *(each.id for each in reversed(gone))]
    assert await ids("expired=true") == [newest.id, *(each.id for each in reversed(gone))]
    assert await ids("expired=true&key=gone-3") == [gone[3].id]
    refused = await ask("/v1/operations?expired=true&state=pending")
    assert (refused.status_code, "expired cannot be combined" in refused.json["detail"]) == (400, True)
    assert await ids("key=gone-3") == [gone[3].id]
    assert len(await ids("order=order-17")) == 10
    page = (await ask("/v1/operations?limit=1")).json
    assert await ids(f"limit=1&before={page['next']}") == [paid.id]


# --- many


async def test_an_order_for_many_is_a_dry_run_unless_it_says_otherwise(world: World, act: Orders) -> None:
    doubtful = [await world.in_doubt(client_key=f"key-{number}") for number in range(3)]
    found = (await act("/v1/review/park", filter={"state": "unknown"})).json
    assert found == {
        "dry_run": True,
        "count": 3,
        "money": {"EUR": "37.50"},
        "operations": [operation.id for operation in reversed(doubtful)],
        "done": 0,
        "refused": [],
        "more": False,
    }
    assert await world.journal.read(doubtful[0].id) == doubtful[0]
    done = (await act("/v1/review/park", filter={"state": ["unknown"]}, dry_run=False, limit=2)).json
    assert (done["done"], done["more"]) == (2, True)


async def test_what_was_not_shown_is_not_acted_on(world: World, act: Orders) -> None:
    seen = await world.in_doubt(client_key="seen")
    unseen = await world.in_doubt(client_key="unseen")
    done = (await act("/v1/review/park", filter={"doubt": True}, dry_run=False, operations=[seen.id, "op_x"])).json
    assert (done["done"], done["refused"]) == (1, [{"id": "op_x", "why": "it no longer fits the filters"}])
    assert await world.journal.read(unseen.id) == unseen


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({}, "at least one filter"),
        ({"filter": {}}, "at least one filter"),
        ({"filter": {"stat": "unknown"}}, "There is no filter 'stat'"),
        ({"filter": {"state": 7}}, "filter.state is a text"),
        ({"filter": {"state": "unknown", "limit": "5"}}, "limit is no filter"),
        ({"filter": {"state": "unknown"}, "dry_run": "no"}, "dry_run is true or false"),
        ({"filter": {"state": "unknown"}, "limit": 501}, "limit is a whole number from 1 to 500"),
        ({"filter": {"state": "unknown"}, "operations": "op_1"}, "operations is a list"),
        ({"filter": {"state": "unknown"}, "reference": "ch_1"}, "There is no member 'reference'"),
        ({"filter": {"state": "unknown"}, "reason": ""}, "Say why"),
    ],
)
async def test_an_order_for_many_that_is_not_whole_is_400(act: Orders, members: dict[str, Any], says: str) -> None:
    answer = await act("/v1/review/park", **members)
    assert answer.status_code == 400
    assert says in answer.json["detail"]


def _closing() -> OperatorCommand:
    return OperatorCommand(OperatorAction.CLOSE_INCIDENT, "ada", "voided by hand", succeeded=False)


def _inquiring() -> OperatorCommand:
    return OperatorCommand(OperatorAction.INQUIRE, "ada", "customer on the phone")


async def _read(world: World, operation_id: str) -> Operation:
    found = await world.journal.read(operation_id)
    assert found is not None
    return found
