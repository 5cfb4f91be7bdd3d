"""Acme's dialect: what each route does to the money, and what it refuses."""

from __future__ import annotations

import base64

import pytest

from paywitness_sandbox.server import Sandbox, SandboxOptions
from tests.sandbox.raw_client import call, charge, charge_body


async def post(sandbox, path: str, body: object = None, **more):
    return await call(sandbox, "POST", path, {} if body is None else body, **more)


async def get(sandbox, path: str):
    return await call(sandbox, "GET", path)


async def authorize(sandbox, amount: int = 1000) -> str:
    seen = await post(sandbox, "/v1/charges", charge_body("o-1", amount=amount, capture=False))
    assert (seen.json["status"], seen.json["captured"]) == ("authorized", False)
    return seen.json["id"]


def kinds(sandbox) -> list[tuple[str, int]]:
    return [(entry.kind.value, entry.amount) for entry in sandbox.ledger.entries]


async def test_a_charge_answers_what_was_asked(sandbox) -> None:
    body = charge_body("o-1", metadata={"order_id": "o-1", "paywitness": "op-1"})
    seen = await post(sandbox, "/v1/charges", body, key="k-1")
    assert seen.status_code == 200
    assert seen.headers["request-id"] == "req_00000001"
    assert (
        seen.json.items()
        >= {
            "object": "charge",
            "status": "succeeded",
            "amount": 1000,
            "currency": "EUR",
            "captured": True,
            "refunded": False,
            "source": "tok_ok",
            "failure_code": None,
            "idempotency_key": "k-1",
        }.items()
    )
    assert seen.json["metadata"] == {"order_id": "o-1", "paywitness": "op-1"}
    [entry] = sandbox.ledger.entries
    assert (entry.kind, entry.id, entry.key, entry.order, entry.currency) == (
        "charge",
        seen.json["id"],
        "k-1",
        "o-1",
        "EUR",
    )


async def test_an_order_is_paid_by_its_path(sandbox) -> None:
    seen = await post(sandbox, "/v1/orders/o-7/pay", charge_body())
    assert (seen.json["order"], seen.json["metadata"]) == ("o-7", {"order_id": "o-7"})
    assert sandbox.ledger.effects(order="o-7", kind="charge") == 1
    assert sandbox.arrivals.arrivals[0].order == "o-7"


@pytest.mark.parametrize("code", ["insufficient_funds", "stolen_card", "expired_card", "fraudulent"])
async def test_a_declining_token_declines_and_moves_nothing(sandbox, code) -> None:
    seen = await charge(sandbox, source=f"tok_{code}")
    assert (seen.status_code, seen.error["type"], seen.error["code"]) == (402, "card_error", "card_declined")
    assert seen.error["decline_code"] == code
    listed = await get(sandbox, "/v1/charges?order=o-1")
    assert [(item["status"], item["failure_code"]) for item in listed.json["data"]] == [("failed", code)]
    assert sandbox.ledger.effects() == 0


async def test_any_decline_can_be_asked_for(sandbox) -> None:
    assert (await charge(sandbox, source="tok_declined_do_not_honor")).error["decline_code"] == "do_not_honor"


async def test_a_token_with_a_typing_error_does_not_pay(sandbox) -> None:
    seen = await charge(sandbox, source="tok_insuficient_funds")
    assert seen.status_code == 400
    assert "tok_insufficient_funds" in seen.error["message"]


async def test_processing_is_an_effect_that_can_be_settled(sandbox) -> None:
    seen = await charge(sandbox, source="tok_processing")
    assert (seen.json["status"], seen.json["captured"], sandbox.ledger.effects()) == ("processing", False, 1)
    settle = f"/_sandbox/charges/{seen.json['id']}/settle"
    assert (await post(sandbox, settle, {"status": "succeeded"})).json["status"] == "succeeded"
    assert (await post(sandbox, settle, {"status": "failed"})).status_code == 409
    assert sandbox.ledger.effects() == 1


async def test_processing_that_fails_is_given_back(sandbox) -> None:
    seen = await charge(sandbox, source="tok_processing")
    await post(sandbox, f"/_sandbox/charges/{seen.json['id']}/settle", {"status": "failed"})
    assert (await get(sandbox, f"/v1/charges/{seen.json['id']}")).json["status"] == "failed"
    assert kinds(sandbox) == [("charge", 1000), ("void", 1000)]


async def test_3ds_moves_money_only_when_the_customer_has_authenticated(sandbox) -> None:
    seen = await charge(sandbox, key="k-1", source="tok_3ds")
    assert (seen.json["status"], sandbox.ledger.effects()) == ("requires_action", 0)
    path = seen.json["next_action"]["redirect_url"].removeprefix("http://sandbox.test")
    assert (await post(sandbox, path)).json["status"] == "succeeded"
    assert sandbox.ledger.effects(key="k-1") == 1


async def test_3ds_that_the_customer_fails_leaves_no_effect(sandbox) -> None:
    name = (await charge(sandbox, key="k-1", source="tok_3ds")).json["id"]
    settled = await post(sandbox, f"/_sandbox/charges/{name}/settle", {"status": "failed"})
    assert (settled.json["status"], settled.json["failure_code"]) == ("failed", "generic_decline")
    assert "next_action" not in (await get(sandbox, f"/v1/charges/{name}")).json
    assert sandbox.ledger.effects() == 0


async def test_3ds_of_an_authorization_ends_as_one(sandbox) -> None:
    body = charge_body("o-1", source="tok_3ds", capture=False)
    name = (await post(sandbox, "/v1/charges", body)).json["id"]
    assert (await post(sandbox, f"/_sandbox/charges/{name}/settle")).json["status"] == "authorized"
    assert kinds(sandbox) == [("authorization", 1000)]


async def test_3ds_answered_again_under_its_key_is_the_same_charge(sandbox) -> None:
    first = await charge(sandbox, key="k-1", source="tok_3ds")
    await post(sandbox, f"/_sandbox/charges/{first.json['id']}/settle")
    again = await charge(sandbox, key="k-1", source="tok_3ds")
    assert (again.json, again.headers["idempotent-replayed"]) == (first.json, "true")
    assert sandbox.ledger.effects() == 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"amount": None}, "amount"),
        ({"amount": 0}, "amount"),
        ({"amount": -1}, "amount"),
        ({"amount": 10.5}, "amount"),
        ({"amount": "1000"}, "amount"),
        ({"amount": True}, "amount"),
        ({"amount": 10**13}, "amount"),
        ({"currency": None}, "currency"),
        ({"currency": "EURO"}, "currency"),
        ({"capture": "yes"}, "capture"),
        ({"source": 4242}, "source"),
        ({"metadata": "o-1"}, "metadata"),
        ({"metadata": {str(number): "" for number in range(51)}}, "metadata"),
    ],
)
async def test_an_invalid_charge_names_its_parameter(sandbox, change, param) -> None:
    seen = await post(sandbox, "/v1/charges", charge_body(**change))
    assert (seen.status_code, seen.error["type"], seen.error["param"]) == (400, "invalid_request_error", param)
    assert sandbox.ledger.effects() == 0


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000, b"amount=1000"])
async def test_a_body_that_is_no_json_object_is_refused(sandbox, body) -> None:
    assert (await post(sandbox, "/v1/charges", body)).error["type"] == "invalid_request_error"


async def test_a_capture_takes_what_was_authorized_once(sandbox) -> None:
    name = await authorize(sandbox)
    assert (await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 1001})).error["code"] == "amount_too_large"
    captured = await post(sandbox, f"/v1/charges/{name}/capture", {"amount": 700})
    assert (captured.json["status"], captured.json["amount_captured"]) == ("succeeded", 700)
    again = await post(sandbox, f"/v1/charges/{name}/capture")
    assert (again.status_code, again.error["code"]) == (409, "charge_already_captured")
    assert kinds(sandbox) == [("authorization", 1000), ("capture", 700)]


async def test_a_void_releases_an_authorization_once(sandbox) -> None:
    name = await authorize(sandbox)
    assert (await post(sandbox, f"/v1/charges/{name}/void")).json["status"] == "voided"
    assert (await post(sandbox, f"/v1/charges/{name}/void")).error["code"] == "charge_already_voided"
    assert (await post(sandbox, f"/v1/charges/{name}/capture")).error["code"] == "charge_already_voided"
    assert kinds(sandbox) == [("authorization", 1000), ("void", 1000)]


async def test_what_was_never_paid_is_called_off_without_an_effect(sandbox) -> None:
    name = (await charge(sandbox, source="tok_3ds")).json["id"]
    assert (await post(sandbox, f"/v1/charges/{name}/void")).json["status"] == "voided"
    assert sandbox.ledger.effects() == 0


async def test_refunds_go_as_far_as_the_money(sandbox) -> None:
    name = (await charge(sandbox)).json["id"]
    path = f"/v1/charges/{name}/refunds"
    part = await post(sandbox, path, {"amount": 400, "metadata": {"paywitness": "op-9"}}, key="k-r")
    assert part.json.items() >= {"object": "refund", "charge": name, "amount": 400, "status": "succeeded"}.items()
    assert (await post(sandbox, path, {"amount": 601})).error["code"] == "amount_too_large"
    assert (await post(sandbox, path)).json["amount"] == 600
    over = await post(sandbox, path)
    assert (over.status_code, over.error["code"]) == (409, "charge_already_refunded")
    assert (await get(sandbox, f"/v1/charges/{name}")).json["refunded"] is True
    assert sandbox.ledger.effects(charge=name, kind="refund") == 2
    assert sandbox.ledger.effects(key="k-r") == 1
    assert (await get(sandbox, f"/v1/refunds/{part.json['id']}")).json == part.json
    assert len((await get(sandbox, path)).json["data"]) == 2
    assert [item["id"] for item in (await get(sandbox, f"{path}?paywitness=op-9")).json["data"]] == [part.json["id"]]
    assert [item["id"] for item in (await get(sandbox, f"{path}?key=k-r")).json["data"]] == [part.json["id"]]


async def test_what_is_not_captured_is_not_refunded(sandbox) -> None:
    name = await authorize(sandbox)
    seen = await post(sandbox, f"/v1/charges/{name}/refunds")
    assert (seen.status_code, seen.error["code"]) == (409, "charge_not_captured")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/charges/ch_none"),
        ("GET", "/v1/refunds/re_none"),
        ("GET", "/v1/charges/ch_none/refunds"),
        ("POST", "/v1/charges/ch_none/capture"),
        ("POST", "/v1/charges/ch_none/void"),
        ("POST", "/v1/charges/ch_none/refunds"),
        ("GET", "/v1/nothing"),
        ("DELETE", "/v1/charges"),
        ("POST", "/v1/orders//pay"),
    ],
)
async def test_what_is_not_there_is_404(sandbox, method, path) -> None:
    seen = await call(sandbox, method, path)
    assert (seen.status_code, seen.error["type"]) == (404, "invalid_request_error")


async def test_charges_are_found_by_order_key_and_stamp_newest_first(sandbox) -> None:
    names = []
    for number in range(3):
        body = charge_body(metadata={"order_id": "o-1", "paywitness": f"op-{number}"})
        names.append((await post(sandbox, "/v1/charges", body, key=f"k-{number}")).json["id"])

    async def found(query: str) -> list[str]:
        return [item["id"] for item in (await get(sandbox, f"/v1/charges?{query}")).json["data"]]

    assert await found("order=o-1") == names[::-1]
    assert await found("key=k-1") == [names[1]]
    assert await found("paywitness=op-2&order=o-1") == [names[2]]
    assert await found("order=o-1&key=none") == []
    page = await get(sandbox, "/v1/charges?order=o-1&limit=2")
    assert page.json["has_more"] is True
    assert await found(f"order=o-1&limit=2&starting_after={page.json['data'][-1]['id']}") == [names[0]]


async def test_what_is_absent_from_page_one_of_many_stands_on_a_later_one(sandbox) -> None:
    names = [(await charge(sandbox, "o-1")).json["id"] for _ in range(12)]
    first = (await get(sandbox, "/v1/charges?order=o-1")).json
    assert (len(first["data"]), first["has_more"]) == (10, True)
    assert names[0] not in [item["id"] for item in first["data"]]
    after = first["data"][-1]["id"]
    second = (await get(sandbox, f"/v1/charges?order=o-1&starting_after={after}")).json
    assert ([item["id"] for item in second["data"]], second["has_more"]) == (names[1::-1], False)


async def test_refunds_of_all_charges_are_listed_and_paged(sandbox) -> None:
    names = []
    for order in ("o-1", "o-2"):
        charged = (await charge(sandbox, order)).json["id"]
        for number in range(2):
            body = {"amount": 100, "metadata": {"paywitness": f"{order}-{number}"}}
            names.append(
                (await post(sandbox, f"/v1/charges/{charged}/refunds", body, key=f"{order}-{number}")).json["id"]
            )

    async def found(query: str) -> list[str]:
        return [item["id"] for item in (await get(sandbox, f"/v1/refunds?{query}")).json["data"]]

    assert await found("") == names[::-1]
    assert await found("order=o-1") == names[1::-1]
    assert await found("paywitness=o-2-0") == [names[2]]
    assert await found("key=o-2-1") == [names[3]]
    assert (await get(sandbox, "/v1/refunds?limit=3")).json["has_more"] is True
    assert await found(f"limit=3&starting_after={names[1]}") == [names[0]]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=many", "starting_after=ch_none"])
async def test_a_page_that_is_none_is_refused(sandbox, query) -> None:
    assert (await get(sandbox, f"/v1/charges?{query}")).status_code == 400


async def test_a_search_may_lag_behind_but_a_name_never_does(make_sandbox) -> None:
    now = [1000.0]
    sandbox = await make_sandbox(search_lag_s=5, clock=lambda: now[0])
    name = (await charge(sandbox)).json["id"]
    refund = (await post(sandbox, f"/v1/charges/{name}/refunds", {"amount": 1})).json["id"]
    lists = ("/v1/charges?order=o-1", f"/v1/charges/{name}/refunds", "/v1/refunds")
    assert [(await get(sandbox, path)).json["data"] for path in lists] == [[], [], []]
    assert (await get(sandbox, f"/v1/charges/{name}")).status_code == 200
    assert (await get(sandbox, f"/v1/refunds/{refund}")).status_code == 200
    now[0] += 5
    assert [len((await get(sandbox, path)).json["data"]) for path in lists] == [1, 1, 1]
    assert len((await get(sandbox, "/v1/charges?order=o-1")).json["data"]) == 1


async def test_api_keys_are_asked_for_when_there_are_any(make_sandbox) -> None:
    sandbox = await make_sandbox(api_keys=("sk_1",))
    basic = base64.b64encode(b"sk_1:").decode()
    tries = ["", "Bearer sk_2", "Basic !!", "Bearer sk_1", f"Basic {basic}"]
    seen = [await charge(sandbox, key="k-1", headers={"Authorization": value}) for value in tries]
    assert [answer.status_code for answer in seen] == [401, 401, 401, 200, 200]
    assert (await get(sandbox, "/_sandbox/ledger")).status_code == 200


async def test_a_full_ledger_refuses_rather_than_forgets(make_sandbox) -> None:
    sandbox = await make_sandbox(ledger_max=1)
    await charge(sandbox, "o-1")
    seen = await charge(sandbox, "o-2", key="k-2")
    assert (seen.status_code, seen.error["code"]) == (507, "ledger_full")
    assert sandbox.ledger.charges_by_order() == {"o-1": 1}


async def test_names_never_come_back_after_a_reset_or_a_restart(sandbox, make_sandbox) -> None:
    names = [(await charge(sandbox)).json["id"]]
    sandbox.reset()
    names.append((await charge(sandbox)).json["id"])
    names.append((await charge(await make_sandbox())).json["id"])
    assert len(set(names)) == 3


def test_a_contract_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="known: replayed, reexecuted, not_stored, none"):
        Sandbox(SandboxOptions(contract="always"))
