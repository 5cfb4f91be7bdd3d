"""Payouts: what each does to the money, how it is found again, and how a pending one ends."""

from __future__ import annotations

import pytest

from tests.sandbox.raw_client import call, until


async def pay_out(sandbox, reference: str | None = "p-1", **more):
    options = {name: more.pop(name) for name in ("key", "fault", "contract", "headers") if name in more}
    body = {"amount": 700, "currency": "EUR", **({} if reference is None else {"reference": reference}), **more}
    return await call(sandbox, "POST", "/v1/payouts", body, **options)


async def found(sandbox, query: str) -> list[str]:
    return [item["id"] for item in (await call(sandbox, "GET", f"/v1/payouts?{query}")).json["data"]]


async def test_a_payout_answers_what_was_asked_and_is_in_the_ledger(sandbox) -> None:
    seen = await pay_out(sandbox, destination="DE89370400440532013000", metadata={"paywitness": "op-1"}, key="k-1")
    assert seen.status_code == 200
    assert seen.json["id"].startswith("po_")
    expected = {
        "object": "payout",
        "status": "paid",
        "amount": 700,
        "currency": "EUR",
        "destination": "DE89370400440532013000",
        "reference": "p-1",
        "failure_code": None,
        "idempotency_key": "k-1",
    }
    assert seen.json.items() >= expected.items()
    [entry] = sandbox.ledger.entries
    assert (entry.kind, entry.id, entry.charge, entry.key, entry.order, entry.amount) == (
        "payout",
        seen.json["id"],
        seen.json["id"],
        "k-1",
        "p-1",
        700,
    )
    assert (await call(sandbox, "GET", f"/v1/payouts/{seen.json['id']}")).json == seen.json
    assert sandbox.arrivals.arrivals[0].order == "p-1"


async def test_pending_is_an_effect_that_can_be_settled_once(sandbox) -> None:
    name = (await pay_out(sandbox, destination="dest_pending")).json["id"]
    assert sandbox.ledger.effects(kind="payout") == 1
    settle = f"/_sandbox/payouts/{name}/settle"
    assert (await call(sandbox, "POST", settle, {"status": "paid"})).json["status"] == "paid"
    again = await call(sandbox, "POST", settle, {"status": "failed"})
    assert (again.status_code, again.error["code"]) == (409, "payout_not_open")
    assert sandbox.ledger.effects() == 1


async def test_pending_that_fails_comes_back(sandbox) -> None:
    name = (await pay_out(sandbox, destination="dest_pending")).json["id"]
    await call(sandbox, "POST", f"/_sandbox/payouts/{name}/settle", {"status": "failed"})
    seen = (await call(sandbox, "GET", f"/v1/payouts/{name}")).json
    assert (seen["status"], seen["failure_code"]) == ("failed", "account_closed")
    assert [(entry.kind, entry.amount) for entry in sandbox.ledger.entries] == [("payout", 700), ("void", 700)]


async def test_settling_a_payout_names_its_mistakes(sandbox) -> None:
    assert (await call(sandbox, "POST", "/_sandbox/payouts/po_none/settle", {})).status_code == 404
    name = (await pay_out(sandbox, destination="dest_pending")).json["id"]
    assert (await call(sandbox, "POST", f"/_sandbox/payouts/{name}/settle", {"status": "maybe"})).status_code == 400


async def test_a_failure_is_told_in_a_200_or_refused_with_402(sandbox) -> None:
    failed = await pay_out(sandbox, destination="dest_failed_no_account")
    assert (failed.status_code, failed.json["status"], failed.json["failure_code"]) == (200, "failed", "no_account")
    refused = await pay_out(sandbox, destination="dest_refused_limit_exceeded")
    assert (refused.status_code, refused.error["type"], refused.error["decline_code"]) == (
        402,
        "payout_error",
        "limit_exceeded",
    )
    assert len(await found(sandbox, "reference=p-1")) == 2
    assert sandbox.ledger.effects() == 0


async def test_a_destination_with_a_typing_error_pays_nothing(sandbox) -> None:
    seen = await pay_out(sandbox, destination="dest_pendin")
    assert (seen.status_code, sandbox.ledger.effects()) == (400, 0)
    assert "dest_pending" in seen.error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"amount": 0}, "amount"),
        ({"currency": "EURO"}, "currency"),
        ({"destination": 7}, "destination"),
        ({"reference": 7}, "reference"),
        ({"metadata": "x"}, "metadata"),
    ],
)
async def test_an_invalid_payout_names_its_parameter(sandbox, change, param) -> None:
    seen = await call(sandbox, "POST", "/v1/payouts", {"amount": 700, "currency": "EUR", **change})
    assert (seen.status_code, seen.error["param"], sandbox.ledger.effects()) == (400, param, 0)


async def test_payouts_are_found_by_stamp_reference_order_and_key_newest_first(sandbox) -> None:
    names = []
    for number in range(3):
        metadata = {"paywitness": f"op-{number}", "order_id": "o-1"}
        names.append((await pay_out(sandbox, f"p-{number}", metadata=metadata, key=f"k-{number}")).json["id"])
    assert await found(sandbox, "order=o-1") == names[::-1]
    assert await found(sandbox, "paywitness=op-1") == [names[1]]
    assert await found(sandbox, "reference=p-2") == [names[2]]
    assert await found(sandbox, "key=k-0&order=o-1") == [names[0]]
    assert await found(sandbox, "reference=none") == []
    page = (await call(sandbox, "GET", "/v1/payouts?limit=2")).json
    assert page["has_more"] is True
    assert await found(sandbox, f"limit=2&starting_after={page['data'][-1]['id']}") == [names[0]]


async def test_a_search_for_payouts_lags_as_one_for_charges_does(make_sandbox) -> None:
    now = [1000.0]
    sandbox = await make_sandbox(search_lag_s=5, clock=lambda: now[0])
    name = (await pay_out(sandbox)).json["id"]
    assert await found(sandbox, "reference=p-1") == []
    assert (await call(sandbox, "GET", f"/v1/payouts/{name}")).status_code == 200
    now[0] += 5
    assert await found(sandbox, "reference=p-1") == [name]


@pytest.mark.parametrize(("contract", "effects"), [("replayed", 1), ("reexecuted", 1), ("not_stored", 1), ("none", 2)])
async def test_the_contract_is_the_same_as_for_charges(sandbox, contract, effects) -> None:
    for _ in range(2):
        await pay_out(sandbox, key="k-1", contract=contract)
    assert sandbox.ledger.effects(key="k-1", kind="payout") == effects


async def test_a_payout_whose_answer_was_lost_is_replayed(sandbox) -> None:
    assert (await pay_out(sandbox, key="k-1", fault="drop_after_commit")).raw == b""
    again = await pay_out(sandbox, key="k-1")
    assert (again.headers["idempotent-replayed"], sandbox.ledger.effects()) == ("true", 1)


async def test_the_ledger_shows_who_was_paid_twice(sandbox) -> None:
    for reference in ("p-1", "p-1", "p-2"):
        await pay_out(sandbox, reference)
    seen = (await call(sandbox, "GET", "/_sandbox/ledger")).json
    assert seen["payouts_by_order"] == {"p-1": 2, "p-2": 1}
    assert seen["duplicate_payouts_by_order"] == {"p-1": 2}
    assert seen["duplicates_by_order"] == {}
    assert seen["totals"]["payout"] == {"count": 3, "amount": {"EUR": 2100}}


async def test_what_is_no_payout_is_404(sandbox) -> None:
    assert (await call(sandbox, "GET", "/v1/payouts/po_none")).status_code == 404


async def test_a_payout_that_was_paid_comes_back_once(telling, receiver) -> None:
    name = (await pay_out(telling, key="k-1")).json["id"]
    seen = await call(telling, "POST", f"/_sandbox/payouts/{name}/reverse")
    assert (seen.status_code, seen.json["status"]) == (200, "reversed")
    assert (await call(telling, "GET", f"/v1/payouts/{name}")).json == seen.json
    assert [(entry.kind, entry.amount) for entry in telling.ledger.find(key="k-1")] == [
        ("payout", 700),
        ("reversal", 700),
    ]
    again = await call(telling, "POST", f"/_sandbox/payouts/{name}/reverse")
    assert (again.status_code, again.error["code"]) == (409, "payout_not_paid")
    await until(lambda: telling.webhooks.waiting == 0)
    assert receiver.types == ["payout.paid", "payout.reversed"]
    assert receiver.told[1].json["data"] == seen.json


async def test_a_reference_that_returns_is_paid_again(sandbox) -> None:
    """Whether that is right is for others to say: the provider does not look at references."""
    names = [(await pay_out(sandbox, "p-1", key=f"k-{number}")).json["id"] for number in range(2)]
    assert len(set(names)) == 2
    assert sandbox.ledger.effects(order="p-1", kind="payout") == 2
